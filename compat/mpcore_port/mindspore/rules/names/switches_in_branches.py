"""``if epoch == last: torch.set_grad_enabled(False)`` in front of a loop over batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.plan import plans_of
from mpcore_port.mindspore.rules.place import PortRule, need

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["BranchSwitchRule"]


class BranchSwitchRule(PortRule):
    """A switch in a branch is the runtime's where each loss has a loop or a branch of its own."""

    name = "gradient switch in a branch"
    reason = "nothing is differentiated while it is off, as in no_grad"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Replace one call that stands on its own line of a branch."""
        names = at.names
        if names.called(old) != "torch.set_grad_enabled" or len(old.args) != 1:
            return None
        if not isinstance(names.parents.get(old), cst.Expr) or old.args[0].star:
            return None
        home = names.enclosing(old, cst.FunctionDef)
        sinks = [sink.call for sink in at.once(plans_of).sinks]
        around = [one for one in sinks if names.enclosing(one, cst.FunctionDef) is home]
        if not around or not all(_is_apart(old, one, at) for one in around):
            return None
        func = cst.Attribute(cst.Name(need(at, "port", "torch")), cst.Name("set_grad_enabled"))
        made = new.with_changes(func=func)
        at.note(self, old, made)
        return made


def _is_apart(switch: cst.CSTNode, sink: cst.CSTNode, at: At) -> bool:
    """Return whether no statement of a loss can be on both sides of a switch.

    It has a loop of its own in the block that both share, or they are branches of one ``if``.
    """
    above = list(at.names.ancestors(switch))
    shared = next((one for one in at.names.ancestors(sink) if any(one is a for a in above)), None)
    if isinstance(shared, cst.If):
        return True
    path: list[Any] = []
    for one in at.names.ancestors(sink):
        if one is shared:
            break
        path.append(one)
    return any(isinstance(one, (cst.For, cst.While)) for one in path)
