"""``torch.amp`` with the decisions of mpcore: change the import, nothing else changes.

``from mpcore_compat.torch_amp import GradScaler, autocast`` for ``torch.amp``; the modules
``torch_amp.cuda``, ``torch_amp.cpu`` and ``torch_amp.npu`` for ``torch.cuda.amp``,
``torch.cpu.amp`` and ``torch_npu.npu.amp``. Everything but GradScaler is torch's own object.
"""

from torch.amp import autocast, custom_bwd, custom_fwd, is_autocast_available

from mpcore_compat.torch_amp import cpu, cuda, npu
from mpcore_compat.torch_amp.scaler import GradScaler

__all__ = [
    "GradScaler",
    "autocast",
    "cpu",
    "cuda",
    "custom_bwd",
    "custom_fwd",
    "is_autocast_available",
    "npu",
]
