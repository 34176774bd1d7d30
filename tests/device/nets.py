"""A small net with what steps move: weights, statistics, slots; and its batches."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from where import HERE


def net(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), activation(), nn.LayerNorm(16), nn.Linear(16, 4)
    )


def loss_of(model: nn.Module):
    return lambda x, y: functional.cross_entropy(model(x).float(), y)


def batch(number: int, device: torch.device = HERE, boost: float = 1.0):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(12, 8, generator=generator) * boost
    return x.to(device), torch.randint(4, (12,), generator=generator).to(device)


def state_of(model: nn.Module, amp) -> dict[str, torch.Tensor]:
    """Return every bit that a step may move, on the host."""
    found = {f"model {name}": value for name, value in model.state_dict().items()}
    for number, slots in enumerate(amp.optimizer.state.values()):
        found |= {f"slot {number} {k}": torch.as_tensor(v) for k, v in slots.items()}
    found |= {f"master {i}": value for i, value in enumerate(amp.masters.values())}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def differing(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    names = sorted({*one, *two})
    return [
        name
        for name in names
        if name not in one
        or name not in two
        or one[name].dtype != two[name].dtype
        or not torch.equal(one[name].nan_to_num(7.5), two[name].nan_to_num(7.5))
    ]
