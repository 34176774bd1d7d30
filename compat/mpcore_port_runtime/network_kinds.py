"""What is a network: optimizers are Cells in MindSpore, and no Modules in torch."""

from __future__ import annotations

from mindspore import nn
from mindspore.experimental import optim

__all__ = ["Network"]


class _OfNetworks(type):
    def __instancecheck__(cls, instance: object) -> bool:
        others = (optim.Optimizer, nn.Optimizer)
        return isinstance(instance, nn.Cell) and not isinstance(instance, others)


class Network(metaclass=_OfNetworks):
    """What ``isinstance`` finds networks by, as by torch.nn.Module."""
