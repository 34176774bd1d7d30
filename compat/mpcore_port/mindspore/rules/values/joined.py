"""``torch.cat`` of what is not of one kind: labels beside boxes, or a row of ``torch.tensor([])``.

torch takes the widest dtype, and passes tensors of the shape (0,) by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording
from mpcore_port.mindspore.rules.values.whole import is_real, is_whole
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["JoinedRule"]

_JOIN = frozenset({"torch.cat", "torch.concat", "torch.concatenate"})
_OF_NOTHING = frozenset({"Tensor", "FloatTensor", "LongTensor", "IntTensor", "BoolTensor"})
_OF_A_LIST = _OF_NOTHING | {"tensor", "as_tensor"}
_OF_A_SIZE = frozenset({"empty", "zeros", "ones"})
_WORDS = frozenset({"tensors", "dim", "axis"})
_STACK = "torch.stack"
_COUNTED = frozenset(
    """
    category classes idx idxs index indexes indices inds id ids label labels
    """.split()  # noqa: SIM905  # a list of words is read
)
_KEPT = frozenset(
    """
    clone contiguous cpu cuda detach expand expand_as flatten repeat reshape squeeze t to
    transpose type unsqueeze view
    """.split()  # noqa: SIM905
)
_WIDTHS = {
    "torch.bfloat16": "bfloat16",
    "torch.double": "double",
    "torch.float16": "half",
    "torch.float64": "double",
    "torch.half": "half",
}
"""How a float that is not torch's usual one is said, and the method that gives it."""
_WHOLE = frozenset({"bool", "int", "long", "short"})


class JoinedRule(PortRule):
    """``torch.cat([held, new])`` takes a ``held`` of no numbers, and labels beside boxes."""

    name = "joined"
    reason = "torch passes tensors of the shape (0,) by; MindSpore wants one rank"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Replace one call."""
        called = at.names.called(old)
        if called not in _JOIN and called != _STACK:
            return None
        if any(arg.star or (arg.keyword and arg.keyword.value not in _WORDS) for arg in old.args):
            return None
        reason = ""
        if _is_mixed(old, at):
            reason = "torch takes the widest dtype; MindSpore wants one for all"
        elif called == _STACK or not at.once(_makes_empty_rows):
            return None
        name = "port.stacked" if called == _STACK else "port.joined"
        made = new.with_changes(func=cst.parse_expression(wording(at, name)))
        at.note(self, old, made, reason=reason)
        return made


def _is_mixed(call: cst.Call, at: At) -> bool:
    """Return whether some of what is joined counts or names things, and some does not."""
    several = arguments(call, ("tensors",)).get("tensors")
    if not isinstance(several, (cst.List, cst.Tuple)) or len(several.elements) < 2:
        return False
    counts = [_counts(one.value, at) for one in several.elements]
    widths = {_width(one.value, at) for one in several.elements}
    return (any(counts) and not all(counts)) or len(widths) > 1


def _width(node: Any, at: At, depth: int = 4) -> str:
    """Return what float a tensor is, as its last call or its origin says: ``half``; or ""."""
    if isinstance(node, cst.Name) and depth:
        widths = {_width(one, at, depth - 1) for one in at.names.origins(node) if one is not node}
        return widths.pop() if len(widths) == 1 else ""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return ""
    name = node.func.attr.value
    if name in _WIDTHS.values() and not node.args:
        return name
    named = [word for word in _WIDTHS if any(code_of(arg.value) == word for arg in node.args)]
    if named:
        return _WIDTHS[named[0]]
    return _width(node.func.value, at, depth) if name in _KEPT and not at.names.called(node) else ""


def _counts(node: Any, at: At) -> bool:
    """Return whether a tensor may be of whole numbers, as its name or its last call says."""
    if is_whole(node, at):
        return True
    if is_real(node, at):
        return False
    while isinstance(node, (cst.Call, cst.Subscript)):
        if isinstance(node, cst.Subscript):
            node = node.value
            continue
        if not isinstance(node.func, cst.Attribute) or at.names.called(node):
            return False
        name = node.func.attr.value
        if name in _WHOLE and not node.args:
            return True
        if name not in _KEPT or any("dtype" in code_of(arg) for arg in node.args):
            return False
        node = node.func.value
    if isinstance(node, (cst.Name, cst.Attribute)):
        last = node.value if isinstance(node, cst.Name) else node.attr.value
        return last.lower().rpartition("_")[2] in _COUNTED
    return False


def _makes_empty_rows(at: At) -> bool:
    """Return whether the file makes a tensor of no numbers and one axis."""
    return any(_is_empty_row(call, at) for call in at.names.calls)


def _is_empty_row(call: cst.Call, at: At) -> bool:
    module, _, name = (at.names.called(call) or "").rpartition(".")
    if module not in ("torch", "torch.cuda"):
        return False
    given = [arg for arg in call.args if arg.keyword is None]
    if not given:
        return name in _OF_NOTHING
    first = given[0].value
    if isinstance(first, (cst.List, cst.Tuple)) and not first.elements:
        return name in _OF_A_LIST
    return name in _OF_A_SIZE and len(given) == 1 and _is_nothing(first)


def _is_nothing(size: cst.BaseExpression) -> bool:
    """Return whether a size is 0, or (0,)."""
    if isinstance(size, (cst.List, cst.Tuple)):
        return len(size.elements) == 1 and _is_nothing(size.elements[0].value)
    return isinstance(size, cst.Integer) and size.evaluated_value == 0
