"""How torch's layers are made to overflow."""

from __future__ import annotations

import torch

from mpcore_torch.layers import leaves

POLICIES = ["mixed_float16", "autocast_float16", "model_float16, master=copy"]
# float16 autocast has no LSTM on most CPUs.
SKIPPED = {("lstm", "autocast_float16"), ("gru", "autocast_float16")}
WRAPS_INSIDE = False  # hooks see what the layer hands on
NO_NORMS: tuple[str, ...] = ()
SHOWS_CONSTANTS = True


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, number):
        ctx.number = number
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.number, None


def _altered(y, kind, number):
    if isinstance(y, tuple):
        return (_altered(y[0], kind, number), *y[1:])
    if kind == "times":
        return y * number
    if kind == "backward":
        return _Scaled.apply(y, number)
    nothing = y.detach() * 0
    if kind == "mask":
        return y + nothing * ((nothing + 1) * number)
    return y + nothing / (nothing + number)


def wrap(model, path, kind, number):
    module = leaves(model)[path]
    module.register_forward_hook(lambda _module, _args, y: _altered(y, kind, number))
