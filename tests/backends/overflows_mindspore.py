"""How MindSpore's Cells are made to overflow."""

from __future__ import annotations

import types

import mindspore as ms
from mindspore import Tensor, ops

from mpcore_mindspore.layers import leaves

POLICIES = ["mixed_float16", "model_float16, master=copy"]
# The eager float16 LSTM is refused on CPU; norms with statistics keep float32 parameters.
SKIPPED = {
    *(("lstm", policy) for policy in POLICIES),
    *((name, POLICIES[1]) for name in ("resnet", "separable", "gan")),
}
WRAPS_INSIDE = True  # a Cell's own construct, around which the plan casts
NO_NORMS = (POLICIES[1],)  # those with statistics keep float32 parameters
SHOWS_CONSTANTS = False  # primitives take them as tensors


def _times(y, number):
    return (y.astype(ms.float32) * number).astype(y.dtype)


def _altered(y, kind, number):
    if isinstance(y, tuple):
        return (_altered(y[0], kind, number), *y[1:])
    if kind == "times":
        return _times(y, number)
    if kind == "backward":

        def larger(grad):
            return _times(grad, number)

        return ops.InsertGradientOf(larger)(y)
    nothing = ops.stop_gradient(y) * 0
    fits = Tensor(number, ms.float32).astype(y.dtype)
    if kind == "mask":
        return y + nothing * ((nothing + 1) * fits)
    return y + nothing / (nothing + fits)


def wrap(model, path, kind, number):
    cell = leaves(model)[path][0]
    inner = cell.construct
    cell.construct = types.MethodType(
        lambda _self, *args, **kwargs: _altered(inner(*args, **kwargs), kind, number), cell
    )
