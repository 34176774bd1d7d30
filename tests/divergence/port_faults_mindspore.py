"""Mistakes of ports to MindSpore, one function each: (own, rng) -> (constants, places, kinds)."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn

from mpcore_mindspore.layers import leaves

OPTIMIZER = ("(optimizer)",)


def optimizer(own, **changes):
    constants = {**own.optimizer, **changes}
    return nn.Momentum(
        own.model.trainable_params(), constants.pop("rate"), constants.pop("momentum"), **constants
    )


def _of(own, *kinds):
    return {p: cell for p, (cell, _) in leaves(own.model).items() if type(cell) in kinds}


def _pick(rng, found):
    paths = list(found)
    if not paths:
        return "", None
    path = paths[rng.integers(len(paths))]
    return path, found[path]


def _swap(own, path, new):
    """Put another cell in the place of one, with its parameters."""
    home, last = own.model, path.rpartition(".")[2]
    for part in path.split(".")[:-1]:
        home = getattr(home, part)
    old = getattr(home, last)
    for param, kept in zip(new.get_parameters(), old.get_parameters(), strict=True):
        param.set_data(kept.value())
        param.name = kept.name
    new.set_train(old.training)
    if isinstance(home, nn.SequentialCell):
        home[list(home._cells).index(last)] = new
    else:
        setattr(home, last, new)


def eps(own, rng):
    path, norm = _pick(rng, _of(own, nn.BatchNorm2d, nn.LayerNorm))
    if norm is None:
        return None
    value = float(rng.choice([1e-3, 1e-2]))
    if isinstance(norm, nn.LayerNorm):
        _swap(own, path, nn.LayerNorm(norm.normalized_shape, epsilon=value))
    else:
        _swap(own, path, nn.BatchNorm2d(norm.num_features, eps=value, momentum=0.9))
    return {}, (path,), ("eps",)


def momentum(own, rng):
    path, norm = _pick(rng, _of(own, nn.BatchNorm2d))
    if norm is None:
        return None
    kept = float(rng.choice([0.1, 0.99, 0.5]))
    _swap(own, path, nn.BatchNorm2d(norm.num_features, eps=1e-5, momentum=kept))
    return {}, (path,), ("momentum",)


def activation(own, rng):
    path, cell = _pick(rng, _of(own, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.GELU))
    if cell is None:
        return None
    _swap(own, path, [nn.SeLU(), nn.Tanh(), nn.ELU()][rng.integers(3)])
    return {}, (path,), ("activation variant",)


def turned(own, rng):
    found = {p: c for p, c in _of(own, nn.Dense).items() if len(set(c.weight.shape)) == 1}
    path, cell = _pick(rng, found)
    if cell is None:
        return None
    cell.weight.set_data(Tensor(cell.weight.asnumpy().T.copy()))
    return {}, (path,), ("layout",)


def mirrored(own, rng):
    found = {p: c for p, c in _of(own, nn.Conv2d).items() if c.weight.shape[-1] > 1}
    path, cell = _pick(rng, found)
    if cell is None:
        return None
    cell.weight.set_data(Tensor(cell.weight.asnumpy()[..., ::-1, ::-1].copy()))
    return {}, (path,), ("layout",)


def initialised(own, rng):
    path, cell = _pick(rng, _of(own, nn.Dense, nn.Conv2d))
    if cell is None:
        return None
    cell.weight.set_data(Tensor((0.7 * cell.weight.asnumpy() + 0.05).astype(np.float32)))
    return {}, (path,), ("initialisation",)


def scaled_loss(own, rng):
    plain, factor = own.loss, float(rng.choice([8.0, 0.5, 4.0]))
    own.loss = lambda *batch: factor * plain(*batch)
    return {}, ("(loss)",), ("loss reduction",)


def shifted(own, rng):
    if len(own.batch) < 2 or "Int" not in str(own.batch[1].dtype):
        return None
    own.batch = (own.batch[0], (own.batch[1] + 1) % 5, *own.batch[2:])
    return {}, ("batch[1]",), ("label",)


def reordered(own, rng):
    own.batch = tuple(Tensor(x.asnumpy()[::-1].copy()) for x in own.batch)
    return {}, ("batch[0]",), ("data order",)


def rate(own, rng):
    return {"rate": float(rng.choice([0.01, 0.1]))}, OPTIMIZER, ("optimizer constants",)


def less_momentum(own, rng):
    return {"momentum": float(rng.choice([0.5, 0.0]))}, OPTIMIZER, ("optimizer constants",)


def decayed(own, rng):
    return {"weight_decay": 0.2}, OPTIMIZER, ("optimizer constants",)


def frozen(own, rng):
    path, cell = _pick(rng, _of(own, nn.Dense, nn.Conv2d))
    if cell is None:
        return None
    for param in cell.get_parameters():
        param.requires_grad = False
    return {}, (path, "(optimizer)"), ("other setting", "optimizer constants", "unknown")


class _Scaled(nn.Dense):
    def construct(self, x):
        return super().construct(x) * 1.1


def scaled(own, rng):
    path, cell = _pick(rng, _of(own, nn.Dense))
    if cell is None:
        return None
    _swap(own, path, _Scaled(cell.in_channels, cell.out_channels, has_bias=cell.has_bias))
    return {}, (path,), ("other setting",)


def shortened(own, rng):
    """Another formula of GELU, as MindSpore's default is."""
    path, cell = _pick(rng, _of(own, nn.GELU))
    if cell is None:
        return None
    _swap(own, path, nn.GELU(approximate=True))
    return {}, (path,), ("activation variant",)


FAMILIES = {
    plant.__name__: plant
    for plant in (
        *(eps, momentum, activation, turned, mirrored, initialised, scaled_loss, shifted),
        *(reordered, rate, less_momentum, decayed, frozen, scaled, shortened),
    )
}
