"""``DataParallel`` on the one device that a process has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.rule import Rule
from mpcore_port.torch_npu.plan import need_npu
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["OneDevice"]

_NAME = "_port_one_device"
_FUNCTION = """
def {name}(module, device_ids=None, output_device=None, dim=0):
    \"\"\"Return a DataParallel that runs the module on the one device there is.

    It is of torch's own class, ``type(model) is DataParallel``, and keeps the saved names.
    \"\"\"
    alone = {torch}.nn.DataParallel.__new__({torch}.nn.DataParallel)
    {torch}.nn.Module.__init__(alone)
    alone.module, alone.dim, alone.device_ids = module, dim, []  # of none: forward calls the module
    return alone
"""


class OneDevice(Rule):
    """``DataParallel(model)`` keeps its names and runs on one device."""

    name = "data parallel"
    reason = "one process has one device"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace the class that is called; the name alone may stand, as in ``isinstance``."""
        name = at.names.called(old)
        row = next((r for r in settings()["alone"] if r["name"] == name), None)
        if row is None:
            return None
        if _NAME not in at.names.functions:
            at.preambles[_NAME] = _FUNCTION.format(name=_NAME, torch=at.name_of("torch", "torch"))
        need_npu(at)
        changed = new.with_changes(func=cst.Name(_NAME))
        at.note(self, old, changed, "changed", row["reason"], row["effect"])
        return changed
