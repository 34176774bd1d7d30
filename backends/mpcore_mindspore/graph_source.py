"""A graph and its plan as MindSpore source: one Cell whose ``construct`` makes every call.

The same text is what runs under by="graph", what ``ms.jit`` compiles, and what
``mp.graph.source`` shows.
"""

from __future__ import annotations

import ast
import atexit
import base64
import contextlib
import inspect
import re
import sys
import tempfile
import textwrap
import zlib
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import ops
from mindspore.ops._utils.arg_handler import str_to_enum
from mindspore.ops.auto_generate import gen_ops_prim
from mindspore.ops.operations.manually_defined import ops_def

from mpcore.errors import GraphError
from mpcore.graph.clip import CLIP
from mpcore_mindspore.graph_lift import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mpcore.graph.ir import Cast, Graph, GraphPlan, Node
    from mpcore_mindspore.graph_lift import Call, Piece

__all__ = ["cell_of", "module_of", "source_of"]

_HEAD = '''"""{title}"""

import base64
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops.auto_generate import gen_ops_prim as prims


def unpacked(text, dtype, shape):
    """Return an array that is too long to be read."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)
'''
_PRIMITIVE = '''

def primitive(name, **attributes):
    """Return a primitive with its attributes."""
    made = ops.Primitive(name)
    for key, value in attributes.items():
        made.add_prim_attr(key, value)
    return made
'''
_FORK = '''

class Fork(nn.Cell):
    """One cast with several readers; their gradients are added up in the dtype of its input."""

    def __init__(self, dtype, count):
        super().__init__(auto_prefix=False)
        self.dtype, self.count = dtype, count

    def construct(self, x):
        made = ops.cast(x, self.dtype)
        return tuple([ops.identity(made) for _ in range(self.count)])

    def bprop(self, x, out, dout):
        total = ops.cast(dout[self.count - 1], x.dtype)
        for i in range(self.count - 2, -1, -1):
            total = total + ops.cast(dout[i], x.dtype)
        return (total,)
'''
_CLIP = '''

class ClipGradient(nn.Cell):
    """The identity; the gradient behind it is bounded by a norm, or each element by a size."""

    def __init__(self, norm, value):
        super().__init__(auto_prefix=False)
        self.norm, self.value = norm, value

    def construct(self, x):
        return ops.identity(x)

    def bprop(self, x, out, dout):
        wide = ops.cast(dout, ms.float32)
        if self.norm is None:
            return (ops.cast(ops.clip_by_value(wide, -self.value, self.value), dout.dtype),)
        size = ops.sqrt(ops.reduce_sum(wide * wide))
        factor = ops.minimum(self.norm / size, ops.ones_like(size))
        # A norm that is not finite must stay so: the step is to notice it.
        factor = ops.select(ops.isfinite(size), factor, ops.ones_like(size))
        return (ops.cast(wide * factor, dout.dtype),)
'''
_SHORT = 16  # elements of a constant that are written out
_NUMBER = count()


def source_of(
    piece: Piece,
    graph: Graph | None = None,
    plan: GraphPlan | None = None,
    *,
    name: str = "Lowered",
    title: str = "A network with its casts.",
    owned: Mapping[str, Any] | None = None,
) -> str:
    """Return the module whose class ``name`` runs a graph; it is made of Parameters by name.

    Args:
        piece: what was lifted.
        graph: the graph to run; the piece's own where it is None.
        plan: where casts lie; None for none.
        name: of the class.
        title: what the module says of itself.
        owned: names of Parameters that stand for others, by the name of the value.
    """
    return _Writer(piece, graph or piece.graph, plan, name, title, owned or {}).text()


def cell_of(text: str, params: Mapping[str, Any], name: str = "Lowered") -> Any:
    """Return the Cell that ``source_of`` wrote, over these Parameters."""
    return vars(module_of(text))[name](params)


def module_of(text: str) -> ModuleType:
    """Return the module of a source.

    MindSpore's compiler reads the source of a Cell from its file, which lies in a folder that
    goes away with the process.
    """
    title = f"mpcore_by_graph_{next(_NUMBER)}"
    file = Path(_folder()) / f"{title}.py"
    file.write_text(text, encoding="utf-8")
    module = ModuleType(title)
    sys.modules[title] = module  # where the compiler looks for the names in a source
    exec(compile(text, str(file), "exec"), vars(module))  # it was written here
    return module


@cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="mpcore_by_graph_")
    atexit.register(folder.cleanup)
    return folder.name


class _Writer:
    def __init__(
        self,
        piece: Piece,
        graph: Graph,
        plan: GraphPlan | None,
        name: str,
        title: str,
        owned: Mapping[str, Any],
    ) -> None:
        self.piece, self.graph, self.plan, self.name = piece, graph, plan, name
        self.title, self.owned = title, owned
        self.made: list[str] = []  # lines of __init__
        self.runs: list[str] = []  # lines of construct
        self.names: dict[str, str] = {}  # value -> Python name
        self.taken: set[str] = {"self", "ms", "np", "nn", "ops", "prims", "primitive", "unpacked"}
        # what makes a primitive, and the path of the Cell that has one of its own -> member
        self.members: dict[tuple[str, str], str] = {}
        self.waiting: dict[tuple[str, str], list[str]] = {}
        self.before: dict[str, list[Cast]] = {}
        self.after: dict[str, list[Cast]] = {}
        self.uses: set[str] = set()
        at = {node.name: i for i, node in enumerate(graph.nodes)}
        for cast in plan.casts if plan is not None else ():
            if cast.place == "after producer":
                self.after.setdefault(cast.value, []).append(cast)
            else:
                first = min(cast.users, key=lambda user: at.get(user, len(at)))
                self.before.setdefault(first, []).append(cast)

    def text(self) -> str:
        inputs = [self._new(name) for name in self.piece.inputs]
        plain = iter(inputs)
        arguments = [
            next(plain) if _is_tensor(x) else self._new(f"argument_{i}")
            for i, x in enumerate(self.piece.arguments.values)
        ]
        for name, member in zip(self.piece.inputs, inputs, strict=True):
            self.names[name] = member
            self._cast_after(name)
        read = {name for node in self.graph.nodes for name in node.inputs} | set(self.graph.outputs)
        for value in self.graph.values:
            if value.name in read and value.kind in ("param", "buffer"):
                self._held(value.name, f"params[{value.name!r}]")
            elif value.name in read and value.kind == "const":
                self._held(value.name, _literal(self.piece.constants[value.name], value.dtype))
        for node in self.graph.nodes:
            for cast in self.before.get(node.name, ()):
                self._cast(cast)
            self._node(node)
        for cast in self.before.get("", ()):
            self._cast(cast)
        outputs = iter(self.graph.outputs)
        self.runs.append(f"return {self._filled(self.piece.result, outputs)}")
        head = _HEAD.format(title=self.title.replace('"', "'"))
        head += _PRIMITIVE if any("primitive(" in line for line in self.made) else ""
        head += _FORK if "Fork" in self.uses else ""
        head += _CLIP if "ClipGradient" in self.uses else ""
        init = ["super().__init__(auto_prefix=False)", *self.made]
        body = [
            f"class {self.name}(nn.Cell):",
            f'    """{len(self.graph.nodes)} calls of primitives."""',
            "",
            "    def __init__(self, params):",
            *(f"        {line}" for line in init),
            "",
            f"    def construct(self, {', '.join(arguments)}):",
            *(f"        {line}" for line in self.runs),
        ]
        return head + "\n\n" + "\n".join(body) + "\n"

    # --- names ----------------------------------------------------------------------------

    def _new(self, name: str) -> str:
        stem = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "v"
        stem = f"v{stem}" if stem[0].isdigit() else stem
        made, number = stem, 0
        while made in self.taken:
            number += 1
            made = f"{stem}_{number}"
        self.taken.add(made)
        return made

    def _held(self, name: str, text: str) -> None:
        member = self._new(name)
        self.made.append(f"self.{member} = {text}")
        self.names[name] = f"self.{member}"
        self._cast_after(name)

    def _member(self, text: str, stem: str, *, alone: bool = False, of: str = "") -> str:
        """Return the member that holds a primitive: one for calls that make the same.

        What draws has a generator of its own, and is made ``alone``, or once for a Cell ``of``
        this path: copies of a Cell draw the same.
        """
        if alone or (text, of) not in self.members:
            member = self._new(stem.lower())
            self.members[text, of] = f"self.{member}"
            self.made.append(f"self.{member} = {text}")
        return self.members[text, of]

    # --- casts ----------------------------------------------------------------------------

    def _cast(self, cast: Cast) -> None:
        source, users = self.names[cast.value], len(cast.users)
        made = self._new(f"{_last(cast.value)}_{cast.dtype}")
        why = f"  # {cast.rule}".replace("\n", " ")
        if cast.fork and users > 1:
            self.uses.add("Fork")
            fork = self._member(f"Fork(ms.{cast.dtype}, {users})", "fork")
            self.runs.append(f"{made} = {fork}({source}){why}")
            found = [f"{made}[{i}]" for i in range(users)]
        else:
            self.runs.append(f"{made} = ops.cast({source}, ms.{cast.dtype}){why}")
            found = [made] * users
        for user, text in zip(cast.users, found, strict=True):
            self.waiting.setdefault((user, cast.value), []).append(text)

    def _cast_after(self, name: str) -> None:
        for cast in self.after.get(name, ()):
            made = self._new(f"{_last(name)}_{cast.dtype}")
            self.runs.append(f"{made} = ops.cast({self.names[name]}, ms.{cast.dtype})")
            self.names[name] = made

    def _value(self, user: str, name: str) -> str:
        casts = self.waiting.get((user, name))
        if not casts:
            return self.names[name]
        return casts[0] if user == "" else casts.pop(0)

    # --- calls ----------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        call = self.piece.calls.get(node.name)
        made = self._new(_last(node.name) if not node.path else node.name)
        if call is None:
            self.runs.append(f"{made} = {self._own(node)}")
            self._out(node.outputs[0], made)
            return
        values = self._given(node)
        text = self._called(node, call, values)
        if not node.outputs:
            self.runs.append(text)
            return
        self.runs.append(f"{made} = {text}")
        if "bias" in values and not _has(call.args, "bias"):
            self.runs.append(f"{made} = ops.bias_add({made}, {values['bias']})")
        if call.outputs < 0:
            self._out(node.outputs[0], made)
            return
        for i, name in enumerate(node.outputs):
            self._out(name, f"{made}[{i}]")

    def _given(self, node: Node) -> dict[str, str]:
        found = {}
        for i, (role, name) in enumerate(zip(node.roles, node.inputs, strict=True)):
            kept = i in node.keeps and (node.name, name) not in self.waiting
            found[role] = self.names[name] if kept else self._value(node.name, name)
        return found

    def _out(self, name: str, text: str) -> None:
        self.names[name] = text
        self._cast_after(name)

    def _own(self, node: Node) -> str:
        """Return the call of a node that was put in."""
        if node.target != CLIP:
            msg = f"node {node.name!r} cannot be built: MindSpore has no {node.target!r}"
            raise GraphError(msg)
        self.uses.add("ClipGradient")
        norm, value = node.settings.get("norm"), node.settings.get("value")
        clip = self._member(f"ClipGradient({norm!r}, {value!r})", "clip_gradient")
        return f"{clip}({self._value(node.name, node.inputs[0])})"

    def _called(self, node: Node, call: Call, values: Mapping[str, str]) -> str:
        args = [_written(item, values) for item in call.args]
        if call.name == "Cast":
            return f"ops.cast({args[0]}, ms.{_type_name(call.args[1])})"
        if call.name == "Dropout" and len(args) == 4:  # one generator for all calls of one Cell
            own = node.path if node.layer == "Dropout" else ""
            member = self._member(f"ops.Dropout{call.args[1:]!r}", "dropout", of=own)
            return f"{member}({args[0]})"
        draws = node.order >= 0 and not node.state
        cls = getattr(gen_ops_prim, call.name, getattr(ops_def, call.name, None))
        if cls is None or (call.attrs and cls.__module__ != ops_def.__name__):
            member = self._member(_made_with(call), call.name, alone=draws)
            return f"{member}({', '.join(args)})"
        order, made_with = _signature(cls, len(args))
        named = zip(order, call.args, args, strict=False)
        args = [_spelled(cls, n, item, text) for n, item, text in named] + args[len(order) :]
        if len(order) < len(args):
            msg = f"{node.name}: MindSpore's {call.name} cannot be called with {len(args)} inputs"
            raise GraphError(msg)
        init = ", ".join(f"{n}={a}" for n, a in zip(order, args, strict=False) if n in made_with)
        given = ", ".join(a for n, a in zip(order, args, strict=False) if n not in made_with)
        home = "ops" if cls.__module__ == ops_def.__name__ else "prims"
        member = self._member(f"{home}.{call.name}({init})", call.name, alone=draws)
        return f"{member}({given})"

    def _filled(self, result: Any, outputs: Any) -> str:
        if isinstance(result, Slot):
            return self._value("", next(outputs))
        if isinstance(result, tuple):
            inner = ", ".join(self._filled(item, outputs) for item in result)
            return f"({inner},)" if len(result) == 1 else f"({inner})"
        return repr(result)


_RENAMED = {"data_format": "format", "strides": "stride"}


def _made_with(call: Call) -> str:
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
def _signature(cls: Any, number: int) -> tuple[tuple[str, ...], frozenset[str]]:
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


def _spelled(cls: Any, name: str, item: Any, text: str) -> str:
    """Return an argument as Python takes it: MindIR has numbers for words and dtypes."""
    if not isinstance(item, int) or isinstance(item, bool):
        return text
    said = _classes(sys.modules[cls.__module__]).get(cls.__name__, "")
    about = [line for line in said.splitlines() if f'"{name}"' in line or f"'{name}'" in line]
    if any("dtype_to_type_id" in line for line in about):
        return f"ms.{_type_name(item)}"
    if not any("str_to_enum" in line for line in about):
        return text
    for word in (spelled for each in _WORDS.split() for spelled in (each, each.upper())):
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


def _written(item: Any, values: Mapping[str, str]) -> str:
    if isinstance(item, Slot):
        return values[item.role]
    if isinstance(item, tuple):
        inner = ", ".join(_written(x, values) for x in item)
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    return repr(item)


def _has(args: Any, role: str) -> bool:
    if isinstance(args, tuple):
        return any(_has(item, role) for item in args)
    return isinstance(args, Slot) and args.role == role


def _literal(array: Any, dtype: str) -> str:
    held = f"ms.{dtype}" if dtype != "bool" else "ms.bool_"
    if array.size <= _SHORT and array.dtype.kind in "ib":
        return f"Tensor(np.array({array.tolist()!r}, {array.dtype.name!r}), {held})"
    if array.size == 1 and np.isfinite(array).all():
        return f"Tensor(np.array({array.tolist()!r}, {array.dtype.name!r}), {held})"
    text = base64.b64encode(zlib.compress(array.tobytes())).decode()
    return f"Tensor(unpacked({text!r}, {array.dtype.name!r}, {array.shape!r}).copy(), {held})"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_tensor(value: object) -> bool:
    return hasattr(value, "asnumpy")


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


def _type_name(number: Any) -> str:
    """Return the name of a dtype that a primitive takes as a number."""
    if number not in _TYPES:
        msg = f"a cast to the dtype {number!r} cannot be lifted"
        raise GraphError(msg)
    return _TYPES[number]
