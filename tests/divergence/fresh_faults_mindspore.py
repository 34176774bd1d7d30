"""More mistakes of ports to MindSpore, written before any rule was looked at, with ``fresh``."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from port_faults_mindspore import OPTIMIZER, UNCLEAR, _of, _pick, _swap
from port_faults_mindspore import optimizer as plain_optimizer

PRODUCTS = (nn.Dense, nn.Conv2d)
CAST = ("missing cast", "dtype rule", "op list", "reduction dtype", *UNCLEAR)


def optimizer(own, **changes):
    if changes.pop("adam", False):
        return nn.Adam(own.model.trainable_params(), own.optimizer["rate"])
    if changes.pop("biases", False):
        rate, held = own.optimizer["rate"], own.model.trainable_params()
        biases = [p for p in held if p.name.endswith("bias")]
        groups = [
            {"params": biases, "lr": 2 * rate},
            {"params": [p for p in held if not p.name.endswith("bias")]},
        ]
        return nn.Momentum(groups, rate, own.optimizer["momentum"])
    return plain_optimizer(own, **changes)


def _around(cell, change):
    """Change what a cell hands on."""
    plain = cell.construct
    cell.construct = lambda x: change(plain, x)


def dilated(own, rng):
    found = {p: c for p, c in _of(own, nn.Conv2d).items() if c.kernel_size == (3, 3)}
    found = {p: c for p, c in found.items() if c.stride == (1, 1) and c.group == 1}
    path, cell = _pick(rng, {p: c for p, c in found.items() if c.pad_mode == "pad"})
    if cell is None:
        return None
    kept = {"has_bias": cell.has_bias, "pad_mode": "pad", "padding": 2, "dilation": 2}
    _swap(own, path, nn.Conv2d(cell.in_channels, cell.out_channels, 3, **kept))
    return {}, (path,), ("other setting", "padding")


def groups(own, rng):
    path, cell = _pick(rng, _of(own, nn.GroupNorm))
    if cell is None:
        return None
    _swap(own, path, nn.GroupNorm(4, cell.num_channels, eps=1e-5))
    return {}, (path,), ("other setting",)


def flipped(own, rng):
    x = own.batch[0].asnumpy()
    if x.ndim != 4:
        return None
    own.batch = (Tensor(x[..., ::-1].copy()), *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "layout", "other setting")


def standardised(own, rng):
    if "Int" in str(own.batch[0].dtype):
        return None
    own.batch = ((own.batch[0] - 0.1) / 0.9, *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "other setting")


def stopped(own, rng):
    path, cell = _pick(rng, _of(own, *PRODUCTS))
    if cell is None:
        return None
    _around(cell, lambda call, x: ops.stop_gradient(call(x)))
    return {}, (path,), ("other setting", "unknown")


def _half(grad):
    return (grad * 0.5).astype(grad.dtype)


def halved(own, rng):
    path, cell = _pick(rng, _of(own, *PRODUCTS))
    if cell is None:
        return None
    half = ops.InsertGradientOf(_half)
    _around(cell, lambda call, x: half(call(x)))
    return {}, (path,), ("other setting", "unknown")


def rounded_weights(own, rng):
    path, cell = _pick(rng, _of(own, *PRODUCTS))
    if cell is None:
        return None
    low = (cell.weight.asnumpy().view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    cell.weight.set_data(Tensor(low.copy()))
    return {}, (path,), ("initialisation",)


def rounded_inputs(own, rng):
    x = own.batch[0].asnumpy()
    if x.dtype != np.float32:
        return None
    own.batch = (Tensor(x.astype(np.float16).astype(np.float32)), *own.batch[1:])
    return {}, ("batch[0]",), ("data order", "other setting", "missing cast")


def dropped(own, rng):
    path, cell = _pick(rng, _of(own, nn.Dense))
    if cell is None:
        return None
    _around(cell, lambda call, x: ops.dropout(call(x), 0.1))
    return {}, (path,), ("random state", *UNCLEAR)


def low(own, rng):
    path, cell = _pick(rng, _of(own, *PRODUCTS))
    if cell is None:
        return None
    _around(cell, lambda call, x: call(x).astype(ms.bfloat16).astype(x.dtype))
    return {}, (path,), CAST


def adam(own, rng):
    return {"adam": True}, OPTIMIZER, ("optimizer constants",)


def bias_rate(own, rng):
    if not any(p.name.endswith("bias") for p in own.model.trainable_params()):
        return None
    return {"biases": True}, OPTIMIZER, ("optimizer constants",)


def half_batch(own, rng):
    plain = own.loss
    own.loss = lambda *batch: plain(*(x[: len(x) // 2] for x in batch))
    return {}, ("batch[0]", "(loss)", "batch[1]"), ("data order", "loss reduction", *UNCLEAR)


def moved_bias(own, rng):
    """Start a bias elsewhere."""
    path, cell = _pick(rng, {p: c for p, c in _of(own, *PRODUCTS).items() if c.has_bias})
    if cell is None:
        return None
    cell.bias.set_data(Tensor(cell.bias.asnumpy() + np.float32(0.3)))
    return {}, (path,), ("initialisation",)


FAMILIES = {
    plant.__name__: plant
    for plant in (
        *(dilated, groups, flipped, standardised, stopped, halved, rounded_weights),
        *(rounded_inputs, dropped, low, adam, bias_rate, half_batch, moved_bias),
    )
}
