"""accelerate's Accelerator: its backward passes, and what of it a port has.

The runtime's imitation runs its loop on one device (``port.accelerate``). What it lacks is
refused where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, by_name
from mpcore_port.names import ACCELERATORS, code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["AcceleratedRule", "accelerated", "accelerates"]

_NAME = "accelerate.Accelerator"
_NONE = "the port's Accelerator has no such: it is of one device, for a loop of one's own"
_TRACKERS = "trackers are not ported: leave `log_with` out"
_SET = "the port's Accelerator asks for nothing of that name"


def accelerated(call: cst.Call, at: At) -> Any:
    """Return the loss of ``accelerator.backward(loss)``; None if a call is no such."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "backward" or not call.args:
        return None
    first = call.args[0]
    if first.star or (first.keyword is not None and first.keyword.value != "loss"):
        return None
    return first.value if at.names.is_accelerator(func.value) else None


def accelerates(at: At) -> bool:
    """Return whether a module has an Accelerator, its own or one that it is handed."""
    return any(
        at.names.called(call) in ACCELERATORS or accelerated(call, at) for call in at.names.calls
    )


def _logs(at: At) -> bool:
    """Return whether an Accelerator of the module has trackers, or may have."""
    made = [call for call in at.names.calls if at.names.called(call) in ACCELERATORS]
    row = by_name(_NAME)
    order = [param.name for param in row.params] if row is not None else []
    given = [arguments(call, order).get("log_with") for call in made]
    starred = any(arg.star for call in made for arg in call.args)
    return starred or any(one is not None and code_of(one) != "None" for one in given)


class AcceleratedRule(PortRule):
    """What an Accelerator is asked for that the port's has not is refused."""

    name = "accelerator of accelerate"
    reason = "the runtime's has it"
    visits = (cst.Attribute,)

    def idle(self, at: At) -> bool:
        """Whether there is no Accelerator, or the script is a port."""
        return super().idle(at) or "accelerator" not in at.code.lower()

    def act(self, old: cst.Attribute, new: cst.Attribute, at: At) -> Any:
        """Refuse one attribute, or leave it."""
        if not at.names.is_accelerator(old.value):
            return None
        row = by_name(f"{_NAME}.{old.attr.value}")
        if isinstance(at.names.parents.get(old), (cst.AssignTarget, cst.AnnAssign, cst.AugAssign)):
            if row is None:
                at.unproven(self, old, _SET)
            return None
        if row is None:  # one that is handed in may be another package's
            made = at.names.call_names(old.value) & ACCELERATORS
            return at.refuse(self, old, _NONE) if made else None
        if row.refuse_all:
            return at.refuse(self, old, row.refuse_all)
        call = at.names.parents.get(old)
        if isinstance(call, cst.Call) and call.func is old:
            given = arguments(call, [param.name for param in row.params])
            usual = {param.name: param.default for param in row.params}
            for name, why in row.refuse.items():
                if name in given and code_of(given[name]) != usual[name]:
                    return at.refuse(self, old, why)
        if old.attr.value == "init_trackers" and at.once(_logs):
            return at.refuse(self, old, _TRACKERS)
        return None
