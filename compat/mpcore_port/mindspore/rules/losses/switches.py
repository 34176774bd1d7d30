"""``torch.set_grad_enabled(False)`` on a line of its own: a switch that stays as it is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.losses.moving import moves
from mpcore_port.mindspore.rules.losses.plan import plans_of
from mpcore_port.mindspore.rules.place import PortRule, need

if TYPE_CHECKING:
    from mpcore_port.mindspore.rules.losses.planned import Plan
    from mpcore_port.rule import At

__all__ = ["SwitchRule"]


class SwitchRule(PortRule):
    """A switch of gradients on its own line is the runtime's, unless a loss is made around it."""

    name = "gradient switch"
    reason = "nothing is differentiated while it is off, as in no_grad"
    visits = (cst.Call,)

    def act(self, old: cst.Call, new: cst.Call, at: At) -> Any:
        """Replace one call; what stays is refused by its line."""
        if not _is_switch(old, at) or _is_in_a_step(old, at):
            return None
        block = at.names.parents.get(at.names.statement(old))
        others = (one for one in at.names.calls if _is_switch(one, at) and one is not old)
        beside = (one for one in others if at.names.parents.get(at.names.statement(one)) is block)
        if any(_is_in_a_step(one, at) for one in beside):
            return None  # one without the other is half of it
        func = cst.Attribute(cst.Name(need(at, "port", "torch")), cst.Name("set_grad_enabled"))
        made = new.with_changes(func=func)
        at.note(self, old, made)
        return made


def _is_switch(call: cst.Call, at: At) -> bool:
    """Return whether a call is a switch of gradients on its own line."""
    if at.names.called(call) != "torch.set_grad_enabled" or len(call.args) != 1:
        return False
    return isinstance(at.names.parents.get(call), cst.Expr) and not call.args[0].star


def _is_in_a_step(call: cst.Call, at: At) -> bool:
    """Return whether statements of a loss may be moved past a switch, or it in among them."""
    names, plans = at.names, at.once(plans_of)
    home = names.enclosing(call, cst.FunctionDef)
    above = list(names.ancestors(call))
    planned = {id(plan.sink): plan for some in plans.blocks.values() for plan in some}
    for sink in plans.sinks:
        if names.enclosing(sink.call, cst.FunctionDef) is not home:
            continue
        around = [one for one in names.ancestors(sink.call) if isinstance(one, _BLOCKS)]
        shared = next(one for one in around if one in above)
        plan = planned.get(id(sink))
        if plan is None:
            if around[0] is shared:
                return True
        elif plan.front or (plan.block in above and _is_among(above, plan)):
            return True
    return False


def _is_among(above: list[Any], plan: Plan) -> bool:
    """Return whether a line of a loss's block, or in one, is among what its step is made of."""
    body = list(plan.block.body)
    own = [*plan.places, *plan.again, *plan.moved]
    last = max([*own, *(place for place, one in enumerate(body) if moves(one))])
    place = next(place for place, one in enumerate(body) if one in above)
    return min(own) <= place <= last


_BLOCKS = (cst.IndentedBlock, cst.Module)
