"""``torch.jit.load``: a file that asks for the weights of what is loaded gets those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ScriptedRule"]

_RUN = "what TorchScript holds is loaded as its weights, and nothing here asks for those"


class ScriptedRule(PortRule):
    """One that no ``state_dict`` of the file is about is run: MindSpore runs no TorchScript."""

    name = "scripted"
    reason = _RUN
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Refuse one call."""
        del new
        if at.names.called(old) != "torch.jit.load" or ".state_dict(" in at.source.text:
            return None
        return at.refuse_now(self, old, _RUN)
