"""PyTorch backend of mpcore: torch.nn modules and torch.optim optimizers on CPU and CUDA."""

from mpcore._lib.machine import spare_onednn
from mpcore_torch.amp import TorchAmp
from mpcore_torch.ascend import EmulatedAscend, emulated_ascend
from mpcore_torch.backend import TorchBackend

__all__ = ["EmulatedAscend", "TorchAmp", "TorchBackend", "emulated_ascend"]

spare_onednn()  # before the first product of two matrices: oneDNN asks once
