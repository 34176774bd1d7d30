"""Mistakes of ports to MindSpore, one function each: (own, rng) -> (constants, places, kinds)."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

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


# --- newer ones, written before any rule was looked at

CLASSIFIERS = ("mlp", "separable", "resnet", "mixer", "experts")
UNCLEAR = ("other setting", "unknown")


def temperature(own, rng):
    if own.name not in CLASSIFIERS:
        return None
    own.loss = lambda x, y: ops.cross_entropy(own.model(x) / 2, y)
    return {}, ("(loss)",), ("loss reduction", *UNCLEAR)


def smoothed(own, rng):
    if own.name not in CLASSIFIERS:
        return None
    own.loss = lambda x, y: ops.cross_entropy(own.model(x), y, label_smoothing=0.1)
    return {}, ("(loss)",), ("label", *UNCLEAR)


def probabilities(own, rng):
    """Take logits for probabilities."""
    if own.name not in CLASSIFIERS:
        return None
    own.loss = lambda x, y: ops.cross_entropy(ops.softmax(own.model(x)), y)
    return {}, ("(loss)",), ("loss reduction", "label", *UNCLEAR)


def colours(own, rng):
    x = own.batch[0].asnumpy()
    if x.ndim != 4 or x.shape[1] != 3:
        return None
    own.batch = (Tensor(x[:, ::-1].copy()), *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "layout")


def tokens(own, rng):
    if "Int" not in str(own.batch[0].dtype):
        return None
    own.batch = ((own.batch[0] + 1) % 20, *own.batch[1:])
    return {}, ("batch[0]",), UNCLEAR


def twice(own, rng):
    whole = [x.asnumpy() for x in own.batch]
    own.batch = tuple(Tensor(np.concatenate([x[:-1], x[:1]])) for x in whole)
    return {}, ("batch[0]",), ("data order", *UNCLEAR)


def axis(own, rng):
    path, cell = _pick(rng, _of(own, nn.Softmax))
    if cell is None:
        return None
    _swap(own, path, nn.Softmax(0))
    return {}, (path,), ("other setting",)


def alpha(own, rng):
    path, cell = _pick(rng, _of(own, nn.ReLU, nn.LeakyReLU))
    if cell is None:
        return None
    _swap(own, path, nn.LeakyReLU(0.3))
    return {}, (path,), ("activation variant",)


def exchanged(own, rng):
    shapes = {}
    for path, cell in _of(own, nn.Dense, nn.Conv2d).items():
        shapes.setdefault(tuple(cell.weight.shape), []).append((path, cell))
    found = [same for same in shapes.values() if len(same) > 1]
    if not found:
        return None
    (first, one), (second, other) = found[rng.integers(len(found))][:2]
    kept = [cell.weight.asnumpy().copy() for cell in (one, other)]
    one.weight.set_data(Tensor(kept[1]))
    other.weight.set_data(Tensor(kept[0]))
    return {}, (first, second), ("initialisation", "layout")


def statistics(own, rng):
    """Run a norm as in inference."""
    path, norm = _pick(rng, _of(own, nn.BatchNorm2d))
    if norm is None:
        return None
    kept = {"eps": norm.eps, "momentum": 0.9, "use_batch_statistics": False}
    _swap(own, path, nn.BatchNorm2d(norm.num_features, **kept))
    return {}, (path,), UNCLEAR


def no_bias(own, rng):
    found = {p: c for p, c in _of(own, nn.Dense, nn.Conv2d).items() if c.has_bias}
    path, cell = _pick(rng, found)
    if cell is None:
        return None
    cell.bias.set_data(Tensor(0 * cell.bias.asnumpy()))
    return {}, (path,), ("initialisation",)


def pooled(own, rng):
    path, cell = _pick(rng, _of(own, nn.MaxPool2d))
    if cell is None:
        return None
    _swap(own, path, nn.AvgPool2d(2, 2))
    return {}, (path,), UNCLEAR


def hard(own, rng):
    path, cell = _pick(rng, _of(own, nn.Sigmoid))
    if cell is None:
        return None
    _swap(own, path, nn.HSigmoid())
    return {}, (path,), ("activation variant", "other setting")


def scheduled(own, rng):
    return {"rate": [0.05, 0.03, 0.01, 0.01, 0.01]}, OPTIMIZER, ("schedule",)


NEWER = {
    plant.__name__: plant
    for plant in (
        *(temperature, smoothed, probabilities, colours, tokens, twice, axis, alpha),
        *(exchanged, statistics, no_bias, pooled, hard, scheduled),
    )
}


# --- what loses nothing in the training loss of a few steps


def slow_statistics(own, rng):
    path, norm = _pick(rng, _of(own, nn.BatchNorm2d))
    if norm is None:
        return None
    _swap(own, path, nn.BatchNorm2d(norm.num_features, eps=1e-5, momentum=0.999))
    return {}, (path,), ("momentum",)


def still_biases(own, rng):
    held = [p for p in own.model.trainable_params() if p.name.endswith("bias")]
    for param in held:
        param.requires_grad = False
    return ({}, OPTIMIZER, ("other setting",)) if len(held) > 1 else None


def _small_gone(grad):
    return grad * (ops.abs(grad) > 0.01 * ops.abs(grad).max()).astype(grad.dtype)


class _Flushed(nn.Dense):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.flush = ops.InsertGradientOf(_small_gone)

    def construct(self, x):
        weight = self.flush(self.weight.astype(x.dtype))
        return ops.matmul(x, weight.T) + self.bias.astype(x.dtype)


def flushed(own, rng):
    path, cell = _pick(rng, {p: c for p, c in _of(own, nn.Dense).items() if c.in_channels > 8})
    if cell is None:
        return None
    _swap(own, path, _Flushed(cell.in_channels, cell.out_channels))
    return {}, (path,), ("other setting",)


QUIET = {plant.__name__: plant for plant in (slow_statistics, still_biases, flushed)}
