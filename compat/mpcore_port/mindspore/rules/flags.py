"""Flags of tensors that MindSpore has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import PortRule, wording

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["ELSEWHERE", "DeviceFlagRule"]


ELSEWHERE = ("is_xpu", "is_mps", "is_xla", "is_ipu", "is_hpu", "is_meta", "is_mkldnn", "is_vulkan")


class DeviceFlagRule(PortRule):
    """``x.is_cuda`` asks whether the process has a device: all its tensors are there."""

    name = "is_cuda"
    reason = "one process has one device, and all its tensors are on it"
    visits = (cst.Attribute,)

    def act(self, old: Any, new: Any, at: At) -> Any:
        """Map one attribute that is read."""
        if old.attr.value in ELSEWHERE and at.names.qualified(old) is None:
            at.note(self, old, "False", reason="a tensor of MindSpore is on no such device")
            return cst.Name("False")
        if old.attr.value not in ("is_cuda", "is_npu") or at.names.qualified(old) is not None:
            return None
        if isinstance(at.names.parents.get(old), (cst.AssignTarget, cst.AugAssign)):
            return None
        made = cst.parse_expression(wording(at, "port.is_available()"))
        effect = "True for tensors that torch would have kept on the CPU, where there is a device"
        at.note(self, old, made, "changed", "", effect)
        return made
