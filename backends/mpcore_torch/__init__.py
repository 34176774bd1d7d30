"""PyTorch backend of mpcore: torch.nn modules and torch.optim optimizers on CPU and CUDA."""

from mpcore_torch.backend import TorchBackend
from mpcore_torch.step import TorchAmp

__all__ = ["TorchAmp", "TorchBackend"]
