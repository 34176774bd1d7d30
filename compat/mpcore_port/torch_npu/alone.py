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
_BASE = "_PortOneDevice"
_CLASS = """
class {name}({torch}.nn.DataParallel):
    \"\"\"DataParallel on the one device there is, for classes to derive from.

    Their own ``scatter`` is asked for the part of that device, as torch asks it where there is one.
    \"\"\"

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        {torch}.nn.Module.__init__(self)
        self.module, self.dim, self.device_ids, self.output_device = module, dim, [0], 0

    def scatter(self, inputs, kwargs, device_ids):
        return [inputs], [kwargs]

    def forward(self, *inputs, **kwargs):
        inputs, kwargs = self.scatter(inputs, kwargs, self.device_ids)
        return self.module(*(inputs[0] if inputs else ()), **(kwargs[0] if kwargs else {{}}))
"""


class OneDevice(Rule):
    """``DataParallel(model)`` keeps its names and runs on one device."""

    name = "data parallel"
    reason = "one process has one device"
    visits = (cst.Call, cst.ClassDef)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Replace the class that is called; the name alone may stand, as in ``isinstance``."""
        if isinstance(old, cst.ClassDef):
            return self._derived(old, new, at)
        row = _row(at.names.called(old))
        if row is None:
            return None
        if _NAME not in at.names.functions:
            at.preambles[_NAME] = _FUNCTION.format(name=_NAME, torch=at.name_of("torch", "torch"))
        need_npu(at)
        changed = new.with_changes(func=cst.Name(_NAME))
        at.note(self, old, changed, "changed", row["reason"], row["effect"])
        return changed

    def _derived(self, old: cst.ClassDef, new: cst.ClassDef, at: At) -> Any:
        """Put a class of one device in the place of a base."""
        rows = [_row(at.names.qualified(base.value)) for base in old.bases]
        row = next(filter(None, rows), None)
        if row is None:
            return None
        if _BASE not in at.names.functions:
            at.preambles[_BASE] = _CLASS.format(name=_BASE, torch=at.name_of("torch", "torch"))
        need_npu(at)
        pairs = zip(rows, new.bases, strict=True)
        bases = [
            base if one is None else base.with_changes(value=cst.Name(_BASE)) for one, base in pairs
        ]
        changed = new.with_changes(bases=bases)
        at.note(self, old.bases[0], changed.bases[0], "changed", row["reason"], row["effect"])
        return changed


def _row(name: str | None) -> dict[str, str] | None:
    return next((row for row in settings()["alone"] if row["name"] == name), None)
