"""``torch.accelerator``: torch finds the NPU where torch_npu is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.rule import Rule
from mpcore_port.torch_npu.plan import need_npu

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["Accelerator"]


class Accelerator(Rule):
    """A script that asks for ``torch.accelerator`` imports torch_npu."""

    name = "accelerator"
    reason = "torch_npu is imported: torch then finds the NPU by itself"
    visits = (cst.Call,)

    def leave(self, old: Any, new: Any, at: At) -> Any:
        """Have torch_npu imported; the call stays."""
        name = at.names.called(old)
        if name is None or not name.startswith("torch.accelerator.") or _has_npu(at):
            return None
        need_npu(at)
        at.note(self, old, "import torch_npu")
        return None


def _has_npu(at: At) -> bool:
    return any(
        binding.kind == "import" and binding.qualified.partition(".")[0] == "torch_npu"
        for bindings in at.names.top.bindings.values()
        for binding in bindings
    )
