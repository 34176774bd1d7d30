"""Parameters that come from a generator, and are handed on when it is used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.hazards import spends_again
from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SpentRule"]

_CLIPPED = (
    "in torch the parameters come from a generator that is used up, and nothing is clipped; here "
    "they are a list, and it clips"
)


class SpentRule(PortRule):
    """A clip of ``params = net.parameters()`` that an optimizer has read is listed."""

    name = "spent parameters"
    reason = "parameters are listed"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether nothing is clipped, or the script is a port."""
        return super().idle(at) or "clip_grad" not in at.code

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """List one call."""
        if spends_again(old, at.names):
            at.unproven(self, old, _CLIPPED, new)
        return None
