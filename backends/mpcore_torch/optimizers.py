"""Torch's optimizers by their neutral constants, and what their states are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from mpcore.backend.driver import OptimizerSpec

__all__ = ["SLOTS", "optimizer_of"]

SLOTS = {
    "momentum_buffer": "momentum",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "square_avg": "square_avg",
    "sum": "square_sum",
    "exp_inf": "exp_inf",
}
"""The neutral name of each array of an optimizer's state."""


def optimizer_of(spec: OptimizerSpec, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's own optimizer over ``params``."""
    rate, decay, eps = spec.learning_rate, spec.weight_decay, spec.eps
    if spec.name == "sgd":
        return torch.optim.SGD(
            params,
            rate,
            momentum=spec.momentum,
            weight_decay=decay,
            nesterov=spec.nesterov,
            fused=True,
        )
    if spec.name == "rmsprop":
        return torch.optim.RMSprop(
            params, rate, spec.betas[1], eps, weight_decay=decay, momentum=spec.momentum
        )
    if spec.name == "adagrad":
        # MindSpore's has no eps: a sum that begins above 0 needs none.
        return torch.optim.Adagrad(
            params, rate, weight_decay=decay, eps=eps, initial_accumulator_value=0.1
        )
    if spec.name == "adamax":
        return torch.optim.Adamax(params, rate, spec.betas, eps, weight_decay=decay)
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return kind(params, rate, spec.betas, eps, weight_decay=decay, fused=True)
