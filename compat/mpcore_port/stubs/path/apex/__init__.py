"""Stub for apex on a CPU, by mpcore's compatibility shim; on the path of verification runs only."""

import sys
import types

import torch

from mpcore_compat.apex import amp

__all__ = ["amp", "optimizers", "parallel"]


class _Wrapped(torch.nn.parallel.DistributedDataParallel):  # type: ignore[misc]  # untyped here
    """``apex.parallel.DistributedDataParallel``: it finds its devices by itself."""

    def __init__(self, module: torch.nn.Module, **_: object) -> None:
        super().__init__(module)


parallel = types.ModuleType("apex.parallel")
vars(parallel).update(
    DistributedDataParallel=_Wrapped, convert_syncbn_model=lambda module, *_, **__: module
)
optimizers = types.ModuleType("apex.optimizers")
vars(optimizers).update(
    FusedAdam=torch.optim.AdamW,  # apex's default is adam_w_mode=True
    FusedSGD=torch.optim.SGD,
)
sys.modules["apex.amp"] = amp
sys.modules["apex.parallel"] = parallel
sys.modules["apex.optimizers"] = optimizers
