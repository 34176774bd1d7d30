"""``x.add_(alpha, y)``: torch up to 1.4 took the number first; MindSpore's methods do not.

torch still takes it so: ``x.addcmul_(value, a, b)`` and ``torch.add(x, alpha, y)`` as well. The
number is a keyword today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["OldOrderRule"]

_NUMBERS = {
    "add": ("alpha", 1),
    "sub": ("alpha", 1),
    "addcmul": ("value", 2),
    "addcdiv": ("value", 2),
}
"""By method: the keyword of the number that stood first, and how many tensors stand behind it."""


class OldOrderRule(PortRule):
    """``x.add_(alpha, y)`` is ``x.add_(y, alpha=alpha)``, and ``torch.add`` likewise."""

    name = "old order"
    reason = "the order of torch up to 1.4: the number is a keyword since"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether nothing is added so, or the script is a port."""
        return super().idle(at) or not any(name in at.code for name in _NUMBERS)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Put the number of one call behind its tensors."""
        called = at.names.called(old)
        if any(arg.star or arg.keyword for arg in old.args):
            return None
        if called is not None:
            module, _, name = called.rpartition(".")
            skipped = 1 if module == "torch" else None
        else:
            name = old.func.attr.value if isinstance(old.func, cst.Attribute) else ""
            skipped = 0 if name and _is_tensors(name, old, at) else None
        keyword, tensors = _NUMBERS.get(name.removesuffix("_"), ("", 0))
        if skipped is None or not keyword or len(old.args) != skipped + 1 + tensors:
            return None
        made = new.with_changes(args=_turned(new.args, skipped, keyword))
        at.note(self, old, made)
        return made


def _is_tensors(name: str, call: cst.Call, at: At) -> bool:
    """Return whether a method surely is a tensor's: in place, of two tensors, or on one."""
    if name.startswith("addc") or name in ("add_", "sub_"):
        return True
    held: Any = call.func.value  # type: ignore[attr-defined]
    if at.values.kind(held) == "tensor":
        return True
    return any(
        isinstance(one, cst.Attribute) and one.attr.value in ("data", "grad")
        for one in (held, *at.names.origins(held))
    )


def _turned(args: Any, place: int, keyword: str) -> list[cst.Arg]:
    before, number, behind = args[:place], args[place], args[place + 1 :]
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = cst.parse_expression(f"f({keyword}={code_of(number.value)})")
    moved = last.args[0]  # type: ignore[attr-defined]
    return [*before, *(arg.with_changes(comma=comma) for arg in behind), moved]
