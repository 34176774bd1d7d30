"""Whether all that a call gives was compared with torch: the porter says no more than that."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.checked import kind_of, results, signature
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore_port.mindspore.checked import Parameter, Signature
    from mpcore_port.mindspore.tables import Mapping
    from mpcore_port.rule import At

__all__ = ["Doubt", "doubts", "takes_no_tensor", "takes_no_word", "was_compared"]

# Where a tensor lies, and other numbers than torch's anyway: nothing that could be compared.
_PLACES = frozenset(
    {"device", "generator", "memory_format", "non_blocking", "pin_memory", "layout", "_stacklevel"}
)


# By what stands in a place, not by the place; run in test_run_to_the_end.py.
_BY_NAME = {("torch.randint", "size")}
# What has to fit another argument; run in test_convolutions.py.
_FITTED = {(f"torch.nn.functional.conv{n}d", "groups") for n in (1, 2, 3)}
_EMPTY = re.compile(r"^[\[(]?(\d+\s*,\s*)*0\b(?!\.)")
_MANY_WORDS = 8  # equations, not choices


class Doubt:
    """One thing about a call that was not compared.

    Attributes:
        is_refused: it was tried and is not torch's, or never could be tried.
        text: which, and what was compared.
    """

    def __init__(self, text: str, *, is_refused: bool) -> None:
        self.text, self.is_refused = text, is_refused


_ALONE = "count_include_pad"
"""What a border counts for means nothing without one: test_plain_path.py compares that, too."""


def was_compared(name: str) -> bool:
    """Return whether the plain call of a name gave torch's numbers; methods as ``"Tensor.sum"``."""
    row = results().get(name)
    return row is not None and "fails" not in row


def doubts(row: Mapping, call: cst.Call, at: At) -> list[Doubt]:
    """Return what of a call was not compared with torch; nothing where all of it was."""
    found, sign = results().get(row.name), signature(row.name)
    if sign is None:  # loaders, devices, scalers and the like: whole ports are run for them
        return []
    if found is None:
        return [Doubt(f"{row.name} was not compared with torch", is_refused=False)]
    if "fails" in found:
        return [Doubt(f"{row.name} does not give torch's numbers", is_refused=False)]
    held: dict[str, dict[str, list[str]]] = found.get("params", {})
    named = {param.name for param in sign.params}
    doubted = []
    given = {name for name, _, _ in _given(sign, call)}
    for name, others in found.get("with", {}).items():
        if name in given and name != _ALONE and not given & set(others):
            text = f"`{name}` of {row.name} was compared together with `{others[0]}` only"
            doubted.append(Doubt(text, is_refused=False))
    for name, way, arg in _given(sign, call):
        if not name:
            text = f"{row.name}: which arguments are given is known when it runs"
            doubted.append(Doubt(text, is_refused=False))
        elif name not in named:
            doubted.append(Doubt(f"`{name}` of {row.name} is not torch's", is_refused=False))
        elif not _is_nothing(row, name, arg) and (row.name, name) not in _FITTED:
            doubted += _doubt(row.name, name, held.get(name, {}), way, _code(arg.value, at))
    return doubted


def takes_no_word(name: str, call: cst.Call, at: At) -> bool:
    """Return whether a call hands a string where a tensor's method of its name takes none.

    ``dataset.size("train")`` is another object's. Tensors whose axes have names take some: files
    that say so are left out.
    """
    words = [isinstance(arg.value, _STRINGS) for arg in call.args]
    if not any(words) or any(arg.star for arg in call.args):
        return False
    sign = signature(f"Tensor.{name}")
    if sign is None or _NAMED_AXES.search(at.source.text):
        return False
    params = {param.name: param for param in sign.params}
    for (given, _, arg), is_word in zip(_given(sign, call), words, strict=True):
        param = params.get(given)
        if not is_word or given in _WORDED:
            continue
        if name == "norm" and given == "p" and code_of(arg.value)[1:-1] in ("fro", "nuc"):
            continue
        if param is not None or arg.keyword is None:
            return True  # a keyword that torch does not know is told of elsewhere
    return False


def takes_no_tensor(name: str, call: cst.Call, at: At) -> bool:
    """Return whether a call hands a tensor where a tensor's method of its name takes an axis.

    ``scaling.std(torch.ones(3))`` is another object's.
    """
    sign = signature(f"Tensor.{name}") if name in _OVER_AXES else None
    if sign is None or not call.args or at.values.kind(call.func.value) == "tensor":  # type: ignore[attr-defined]
        return False
    return any(
        given == "dim" and at.values.kind(arg.value) == "tensor"
        for given, _, arg in _given(sign, call)
    )


_OVER_AXES = frozenset(
    """
    all amax amin any argmax argmin argsort cumprod cumsum log_softmax logsumexp mean median
    prod size softmax sort squeeze std sum unbind unsqueeze var
    """.split()  # noqa: SIM905  # a list of words is read
)
_STRINGS = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)
_WORDED = _PLACES | {"dtype", "interpolation", "reduce", "rounding_mode"}
_NAMED_AXES = re.compile(r"\b(refine_names|align_to|align_as|rename_)\b|\bnames\s*=")


def _is_nothing(row: Mapping, name: str, arg: Any) -> bool:
    """Return whether the argument says where a tensor lies, what is trained, or None for None."""
    if name in _PLACES:
        return name in row.drop or "random" in row.effect
    if row.name.startswith("torch.optim.") and name in ("params", "optimizer"):
        return True  # both a list of parameters and groups of them were run
    default = next((param.default for param in row.params if param.name == name), None)
    return default == "None" and code_of(arg.value) == "None"  # it is left out


def _given(sign: Signature, call: cst.Call) -> Iterator[tuple[str, str, Any]]:
    """Yield (torch's parameter, how it is given, argument); no name where that is not known."""
    places = [param for param in sign.params if param.by_position]
    if _is_low_left_out(places, call):
        places = places[1:]
    for place, arg in enumerate(call.args):
        if arg.star == "**":
            yield "", "", arg
        elif arg.keyword is not None:
            yield arg.keyword.value, "keyword", arg
        elif places and places[-1].variadic:
            yield places[-1].name, "starred" if arg.star else "position", arg
        elif arg.star or place >= len(places):
            yield "", "", arg
        else:
            yield places[place].name, "position", arg


def _is_low_left_out(places: Sequence[Parameter], call: cst.Call) -> bool:
    """Return whether this is ``randint(high, size)``, the second argument a size."""
    if [param.name for param in places[:3]] != ["low", "high", "size"] or len(call.args) < 2:
        return False
    if any(arg.keyword is not None and arg.keyword.value == "high" for arg in call.args):
        return False
    second = call.args[1]
    return second.keyword is not None or isinstance(second.value, (cst.Tuple, cst.List))


def _doubt(of: str, name: str, ways: dict[str, list[str]], way: str, code: str) -> Iterator[Doubt]:
    way = "keyword" if (of, name) in _BY_NAME else way
    tried = ways.get(way, ways.get("position", []) if way == "starred" else [])
    wrong = ways.get("wrong", [])
    kind = kind_of(code)
    shown = ", ".join(sorted(k.removeprefix("=") for k in tried))
    if name == "size" and _EMPTY.search(code):
        text = f"`{name}={code}` of {of}: MindSpore's functions of no elements were not compared"
        yield Doubt(text, is_refused=False)
    elif not ways:
        yield Doubt(f"`{name}` of {of} was not compared with torch", is_refused=True)
    elif {kind, f"={code}"} & set(tried) or (not wrong and _is_alike(kind, tried)):
        return
    elif kind in wrong:
        text = f"`{name}={code}` of {of} does not give torch's numbers; what does: {shown or '-'}"
        yield Doubt(text, is_refused=True)
    elif kind == "value":
        if wrong or not tried:
            text = f"`{name}` of {of} is known when it runs; compared with torch: {shown or '-'}"
            yield Doubt(text, is_refused=False)
    else:
        text = f"`{name}={code}` of {of} was not compared with torch; what was: {shown or '-'}"
        yield Doubt(text, is_refused=False)


def _is_alike(kind: str, tried: list[str]) -> bool:
    """Return whether what was tried stands for more: other lengths, other equations."""
    if kind in ("int", "negativeint"):
        return kind.replace("int", "float") in tried
    if kind == "float":  # a number of the other sign, and one of the same without a fraction
        return {"int", "negativefloat"} <= set(tried)
    if kind.endswith(" of 0"):
        return False  # a scalar, or nothing at all
    if " of " in kind:
        return any(one.startswith(kind.partition(" of ")[0]) for one in tried)
    return kind.startswith("'") and sum(one.startswith("'") for one in tried) > _MANY_WORDS


def _code(node: cst.BaseExpression, at: At) -> str:
    if isinstance(node, (cst.Name, cst.Attribute)):
        name = at.names.qualified(node)
        if name is not None and name.startswith("torch."):
            return name
    try:
        return ast.unparse(ast.parse(code_of(node).strip(), mode="eval"))
    except SyntaxError:
        return "value_of_several_lines()"
