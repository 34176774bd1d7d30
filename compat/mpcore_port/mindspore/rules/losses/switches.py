"""``torch.set_grad_enabled(False)`` on a line of its own: a switch that stays as it is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.plan import plans_of
from mpcore_port.mindspore.rules.place import PortRule, need

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["SwitchRule"]


class SwitchRule(PortRule):
    """A switch of gradients on its own line is the runtime's, unless a loss is made around it."""

    name = "gradient switch"
    reason = "nothing is differentiated while it is off, as in no_grad"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Replace one call; what stays is refused by its line."""
        if at.names.called(old) != "torch.set_grad_enabled" or len(old.args) != 1:
            return None
        if not isinstance(at.names.parents.get(old), cst.Expr) or _is_in_a_step(old, at):
            return None
        func = cst.Attribute(cst.Name(need(at, "port", "torch")), cst.Name("set_grad_enabled"))
        made = new.with_changes(func=func)
        at.note(self, old, made)
        return made


def _is_in_a_step(call: cst.Call, at: At) -> bool:
    """Return whether statements of a loss may be moved past a switch, or it in among them."""
    names = at.names
    home = names.enclosing(call, cst.FunctionDef)
    block = names.parents.get(names.statement(call))
    for sink in at.once(plans_of).sinks:
        if names.enclosing(sink.call, cst.FunctionDef) is not home:
            continue
        around = [one for one in names.ancestors(sink.call) if isinstance(one, _BLOCKS)]
        if not any(one is block for one in around[1:]):
            return True
    return False


_BLOCKS = (cst.IndentedBlock, cst.Module)
