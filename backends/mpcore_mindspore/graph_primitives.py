"""How a primitive of a graph is written in Python: what makes it, its arguments in order."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any

from mindspore import ops
from mindspore.ops._utils.arg_handler import str_to_enum

from mpcore.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from mpcore_mindspore.graph_lift import Call

__all__ = ["maker_of", "signature_of", "spelled", "type_name"]

_RENAMED = {"data_format": "format", "strides": "stride"}


def maker_of(call: Call) -> str:
    """Return what makes a primitive that takes its settings when it is made.

    Its class knows more than its attributes say; where the class makes others of them, the bare
    primitive has them as they are.
    """
    cls = getattr(ops, call.name, None)
    if isinstance(cls, type) and issubclass(cls, ops.Primitive):
        names = list(inspect.signature(cls).parameters)
        given = {n: call.attrs.get(n, call.attrs.get(_RENAMED.get(n, ""))) for n in names}
        if None not in given.values():
            for found in (given, {n: _spatial(x) for n, x in given.items()}):
                if _makes(cls, found, call.attrs):
                    return f"ops.{call.name}({', '.join(f'{k}={v!r}' for k, v in found.items())})"
    attributes = "".join(f", {k}={v!r}" for k, v in sorted(call.attrs.items()))
    return f"primitive({call.name!r}{attributes})"


def _spatial(value: Any) -> Any:
    """Return the last two of four sizes: MindSpore puts those of batch and channel before them."""
    return value[2:] if isinstance(value, tuple) and len(value) == 4 else value


def _makes(cls: Any, given: Mapping[str, Any], attrs: Mapping[str, Any]) -> bool:
    try:
        made = cls(**given).attrs
    except (ValueError, TypeError):
        return False
    known = {key: value for key, value in made.items() if key in attrs and "names" not in key}
    return all(attrs[key] == value for key, value in known.items())


@cache
def signature_of(cls: Any, number: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the arguments of a generated primitive in its own order, and those of its making.

    The order is that of the call that its method makes: ``[input, self.axis]``.
    """
    made_with = frozenset(list(inspect.signature(cls.__init__).parameters)[1:])
    given = list(inspect.signature(cls.__call__).parameters)[1:]
    if given == ["args"]:  # written by hand: what it is made with comes last
        inputs = [f"input_{i}" for i in range(number - len(made_with))]
        return (*inputs, *list(inspect.signature(cls.__init__).parameters)[1:]), made_with
    if not made_with:
        return tuple(given), made_with
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.__call__)))
    for node in ast.walk(tree):
        items: Iterable[Any] = ()
        if isinstance(node, ast.Call):
            lists = [x for x in node.args if isinstance(x, ast.List)]
            items = lists[0].elts if lists else node.args
        members = [_read_name(item) for item in items]
        if made_with <= set(members):
            return tuple(name for name in members if name != "self"), made_with
    msg = f"MindSpore's {cls.__name__} is written in a way that is not known"
    raise GraphError(msg)


_WORDS = (
    "NCHW NHWC NCDHW NDHWC ND pad same valid none mean sum constant reflect edge circular "
    "symmetric replicate bilinear nearest bicubic linear zeros border reflection add max min "
    "prod amax amin tanh leading trunc floor"
)


@cache
def _classes(module: ModuleType) -> dict[str, str]:
    """Return the source of each class of a module: ``inspect`` parses 30,000 lines for one."""
    _, *parts = re.split(r"^class (\w+)\(", inspect.getsource(module), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def spelled(cls: Any, name: str, item: Any, text: str) -> str:
    """Return an argument as Python takes it: MindIR has numbers for words and dtypes."""
    if not isinstance(item, int) or isinstance(item, bool):
        return text
    said = _classes(sys.modules[cls.__module__]).get(cls.__name__, "")
    about = [line for line in said.splitlines() if f'"{name}"' in line or f"'{name}'" in line]
    if any("dtype_to_type_id" in line for line in about):
        return f"ms.{type_name(item)}"
    if not any("str_to_enum" in line for line in about):
        return text
    for word in (case for each in _WORDS.split() for case in (each, each.upper())):
        with contextlib.suppress(ValueError):  # no word of this argument
            if str_to_enum(cls.__name__, name, word) == item:
                return repr(word)
    msg = f"`{name}` of MindSpore's {cls.__name__} has the value {item}, which is not known"
    raise GraphError(msg)


def _read_name(item: Any) -> str:
    """Return what an argument is called: ``self.axis``, ``axis`` or ``new_generated_axis``."""
    while isinstance(item, ast.Call):  # converted on the way
        found = [x for x in item.args if isinstance(x, (ast.Name, ast.Attribute))]
        if not found:
            return ""
        item = found[-1]
    if isinstance(item, ast.Attribute):
        return item.attr
    return item.id.removeprefix("new_generated_") if isinstance(item, ast.Name) else ""


_TYPES = {
    30: "bool_",
    32: "int8",
    33: "int16",
    34: "int32",
    35: "int64",
    37: "uint8",
    38: "uint16",
    39: "uint32",
    40: "uint64",
    42: "float16",
    43: "float32",
    44: "float64",
    45: "bfloat16",
}


def type_name(number: Any) -> str:
    """Return the name of a dtype that a primitive takes as a number."""
    if number not in _TYPES:
        msg = f"a cast to the dtype {number!r} cannot be lifted"
        raise GraphError(msg)
    return _TYPES[number]
