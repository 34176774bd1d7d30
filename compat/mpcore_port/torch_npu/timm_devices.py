"""What of timm chooses CUDA: loaders and Mixup are told the NPU, scalers are given the NPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.rule import Rule
from mpcore_port.torch_npu.plan import need_npu
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["TimmDevices"]


class TimmDevices(Rule):
    """``create_loader(...)`` and the like are told the NPU, where no argument may be a device."""

    name = "timm"
    reason = "it takes CUDA where no device is named"
    visits = (cst.Call,)

    def idle(self, at: At) -> bool:
        """Whether the module says nothing of timm."""
        return "timm" not in at.code

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Name the device in one call."""
        name = at.names.called(old)
        row = next((r for r in settings()["timm"] if name in r["names"]), None)
        if row is None or "timm" in at.project.modules:
            return None
        if row["kind"] == "loader":
            return self._loader(old, new, row, at)
        if row["kind"] == "scaler" and old.args:
            return None  # its device is handed in, as a word of the script
        wrapped = cst.Call(cst.Name(f"_port_timm_{row['kind']}"), [cst.Arg(new)])
        return self._noted(wrapped, (old, row), at)

    def _loader(self, old: cst.Call, new: Any, row: Any, at: At) -> Any:
        """Call one of timm's loaders so that its batches come to the NPU, of any timm."""
        words = {arg.keyword.value for arg in old.args if arg.keyword is not None}
        placed = sum(arg.keyword is None for arg in old.args)
        if "device" in words or placed > row["before"] or any(arg.star for arg in old.args):
            return None
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        called = new.with_changes(args=[cst.Arg(new.func, comma=comma), *new.args])
        return self._noted(called.with_changes(func=cst.Name("_port_timm_loader")), (old, row), at)

    def _noted(self, changed: cst.Call, whose: tuple[cst.Call, Any], at: At) -> Any:
        old, row = whose
        at.preambles[f"timm.{row['kind']}"] = _PREAMBLES[row["kind"]].format(
            torch=at.name_of("torch", "torch")
        )
        need_npu(at)
        at.note(self, old, changed, "changed", self.reason, row["effect"])
        return changed


_PREAMBLES = {
    "loader": '''
def _port_timm_loader(make, *args, **kwargs):
    """Make a loader of timm whose batches are the NPU's; before 0.8 it asks for CUDA by name."""
    from inspect import signature
    if "device" in signature(make).parameters:
        return make(*args, device={torch}.device("npu"), **kwargs)
    from torch_npu.contrib import transfer_to_npu
    return make(*args, **kwargs)
''',
    "mixup": '''
def _port_timm_mixup(mixup):
    """Have Mixup's targets be the NPU's; before timm 0.5 it asks for CUDA by name."""
    import timm
    if timm.__version__ < "0.5":
        from torch_npu.contrib import transfer_to_npu
    return mixup
''',
    "scaler": '''
def _port_timm_scaler(scaler):
    """Have timm's scaler hold the NPU's: CUDA's own switches itself off."""
    from torch_npu.npu.amp import GradScaler
    scaler._scaler = GradScaler()
    return scaler
''',
}
