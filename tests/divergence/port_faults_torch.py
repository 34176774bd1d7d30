"""What a torch run may do otherwise without its loss showing it; as in ``port_faults_*``."""

from __future__ import annotations

import torch
from torch import nn

OPTIMIZER = ("(optimizer)",)


def optimizer(own, **changes):
    constants = {**own.optimizer, **changes}
    rate = constants.pop("rate")
    trained = [p for p in own.model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, rate, **constants)


def _pick(rng, own, *kinds):
    found = {p: m for p, m in own.model.named_modules() if type(m) in kinds}
    paths = list(found)
    path = paths[rng.integers(len(paths))] if paths else ""
    return path, found.get(path)


def slow_statistics(own, rng):
    path, norm = _pick(rng, own, nn.BatchNorm1d, nn.BatchNorm2d)
    if norm is None:
        return None
    norm.momentum = 0.001
    return {}, (path,), ("momentum",)


def still_biases(own, rng):
    held = [p for name, p in own.model.named_parameters() if name.endswith("bias")]
    for param in held:
        param.requires_grad_(False)
    return ({}, OPTIMIZER, ("other setting",)) if len(held) > 1 else None


def flushed(own, rng):
    path, layer = _pick(rng, own, nn.Linear)
    if layer is None or layer.in_features <= 8:
        return None
    layer.weight.register_hook(lambda grad: grad * (grad.abs() > 0.01 * grad.abs().max()))
    return {}, (path,), ("other setting",)


QUIET = {plant.__name__: plant for plant in (slow_statistics, still_biases, flushed)}
