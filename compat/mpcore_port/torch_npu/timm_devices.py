"""What of timm chooses CUDA: loaders are told the NPU, scalers are given the NPU's."""

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
    """``create_loader(...)`` and the like get ``device=``, where no argument may be one."""

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
        if row["scaler"]:
            return None if old.args else self._scaler(old, new, row["effect"], at)
        words = {arg.keyword.value for arg in old.args if arg.keyword is not None}
        placed = sum(arg.keyword is None for arg in old.args)
        if "device" in words or placed > row["before"] or any(arg.star for arg in old.args):
            return None
        told = cst.Arg(
            cst.parse_expression(f'{at.name_of("torch", "torch")}.device("npu")'),
            keyword=cst.Name("device"),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        changed = new.with_changes(args=_behind(new.args, told))
        need_npu(at)
        at.note(self, old, changed, "changed", self.reason, row["effect"])
        return changed

    def _scaler(self, old: cst.Call, new: Any, effect: str, at: At) -> Any:
        """Have one of timm's scalers hold the NPU's, of any timm."""
        at.preambles["timm"] = _HOLDS
        need_npu(at)
        changed = cst.Call(cst.Name("_port_timm_scaler"), [cst.Arg(new)])
        at.note(self, old, changed, "changed", self.reason, effect)
        return changed


_HOLDS = '''
def _port_timm_scaler(scaler):
    """Have timm's scaler hold the NPU's: CUDA's own switches itself off."""
    from torch_npu.npu.amp import GradScaler
    scaler._scaler = GradScaler()
    return scaler
'''


def _behind(args: Any, told: cst.Arg) -> list[cst.Arg]:
    """Return arguments with one more; commas stay as they are laid out."""
    if not args:
        return [told]
    *first, last = args
    comma = last.comma
    if isinstance(comma, cst.MaybeSentinel):
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return [*first, last.with_changes(comma=between), told]
    # a comma behind the last one: the new one stands before the bracket in its line
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*first, last.with_changes(comma=between), told.with_changes(comma=comma)]
