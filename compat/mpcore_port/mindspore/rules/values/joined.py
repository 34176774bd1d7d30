"""``torch.cat`` in files that begin a row with ``torch.tensor([])``: torch passes such ones by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["JoinedRule"]

_JOIN = frozenset({"torch.cat", "torch.concat", "torch.concatenate"})
_OF_NOTHING = frozenset({"Tensor", "FloatTensor", "LongTensor", "IntTensor", "BoolTensor"})
_OF_A_LIST = _OF_NOTHING | {"tensor", "as_tensor"}
_OF_A_SIZE = frozenset({"empty", "zeros", "ones"})
_WORDS = frozenset({"tensors", "dim", "axis"})


class JoinedRule(PortRule):
    """``torch.cat([held, new])`` takes a ``held`` of no numbers and one axis."""

    name = "joined"
    reason = "torch passes tensors of the shape (0,) by; MindSpore wants one rank"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Replace one call."""
        if at.names.called(old) not in _JOIN or not at.once(_makes_empty_rows):
            return None
        if any(arg.star or (arg.keyword and arg.keyword.value not in _WORDS) for arg in old.args):
            return None
        made = new.with_changes(func=cst.parse_expression(wording(at, "port.joined")))
        at.note(self, old, made)
        return made


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
