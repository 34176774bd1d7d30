"""Mistakes that ports and scripts make, one function each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from planting import BOTH, BY_OP, Expected, Side, fault, pick
from torch import nn
from torch.nn import functional

import mpcore as mp
from mpcore.scaling.transition import advance, initial_state

# --- settings of layers


@fault("eps")
def eps(side, rng):
    path = pick(rng, side.layers("norm"))
    if path:
        side.model.get_submodule(path).eps = float(rng.choice([1e-3, 1e-2, 1e-12, 3e-3]))
        if side.model.get_submodule(path).eps < 1e-5 and side.policy != "float32":
            side.model.get_submodule(path).eps = 1e-3
        return Expected(path, "eps")
    return None


@fault("momentum")
def momentum(side, rng):
    norms = [
        path
        for path in side.layers("norm")
        if isinstance(side.model.get_submodule(path), nn.BatchNorm2d)
    ]
    path = pick(rng, norms)
    if path:
        side.model.get_submodule(path).momentum = float(rng.choice([0.01, 0.9, 0.99, 0.2]))
        return Expected(path, "momentum")
    return None


@fault("slope")
def slope(side, rng):
    found = [
        p
        for p in side.layers("activation")
        if hasattr(side.model.get_submodule(p), "negative_slope")
    ]
    path = pick(rng, found)
    if path:
        layer = side.model.get_submodule(path)
        others = [s for s in (0.01, 0.3, 0.1) if s != layer.negative_slope]
        layer.negative_slope = float(rng.choice(others))
        return Expected(path, "activation variant")
    return None


@fault("GELU variant")
def gelu_variant(side, rng):
    found = [
        p for p in side.layers("activation") if isinstance(side.model.get_submodule(p), nn.GELU)
    ]
    path = pick(rng, found)
    if path:
        layer = side.model.get_submodule(path)
        layer.approximate = "none" if layer.approximate == "tanh" else "tanh"
        return Expected(path, "activation variant")
    return None


@fault("another activation")
def another_activation(side, rng):
    path = pick(rng, [p for p in side.layers("activation") if "tanh" not in p])
    if path:
        make = [nn.SiLU, nn.ELU, nn.Tanh, nn.LeakyReLU][rng.integers(4)]
        side.swap(path, lambda old: make())
        return Expected(path, "activation variant")
    return None


class _Written(nn.Module):
    """An activation written by hand: its class says nothing."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@fault("activation by hand")
def activation_by_hand(side, rng):
    path = pick(rng, [p for p in side.layers("activation") if "tanh" not in p])
    if path:
        function = [functional.silu, functional.softplus, functional.elu][rng.integers(3)]
        side.swap(path, lambda old: _Written(function))
        return Expected(path, "activation variant")
    return None


class _Padded(nn.Conv2d):
    """Pads by hand, more behind than before, as TensorFlow does for even totals of stride 2."""

    def forward(self, x):
        before, after = self.sides
        return self._conv_forward(functional.pad(x, (before, after) * 2), self.weight, self.bias)


@fault("padding on one side")
def padding_one_side(side, rng):
    found = []
    for path in side.layers("conv"):
        conv = side.model.get_submodule(path)
        if conv.padding[0] and conv.kernel_size[0] > 1 and type(conv) is nn.Conv2d:
            found.append(path)
    path = pick(rng, found)
    if path:
        conv = side.model.get_submodule(path)
        conv.__class__ = _Padded
        conv.sides = (conv.padding[0] - 1, conv.padding[0] + 1)
        conv.padding = (0, 0)
        return Expected(path, "padding")
    return None


@fault("padding mode")
def padding_mode(side, rng):
    found = [p for p in side.layers("conv") if side.model.get_submodule(p).padding[0]]
    path = pick(rng, found)
    if path:
        side.model.get_submodule(path)
        mode = str(rng.choice(["reflect", "circular", "replicate"]))

        def make(old):
            new = nn.Conv2d(
                old.in_channels,
                old.out_channels,
                old.kernel_size,
                old.stride,
                old.padding,
                groups=old.groups,
                bias=old.bias is not None,
                padding_mode=mode,
            )
            new.load_state_dict(old.state_dict())
            return new

        side.swap(path, make)
        return Expected(path, "padding")
    return None


@fault("dropout rate")
def dropout_rate(side, rng):
    path = pick(rng, side.layers("dropout"))
    if path:
        side.model.get_submodule(path).p = float(rng.choice([0.0, 0.5, 0.9]))
        return Expected(path, "random state")
    return None


class _Dropping(nn.Linear):
    """Forgot that dropout is for training alone."""

    def forward(self, x):
        return functional.dropout(super().forward(x), 0.1)


@fault("dropout left on")
def dropout_left_on(side, rng):
    path = pick(rng, _plain(side, "linear"))
    if path:
        side.model.get_submodule(path).__class__ = _Dropping
        return Expected(path, "random state")
    return None


def _plain(side, category):
    """Return layers of exactly torch's class whose weights nobody else holds."""
    tied = {"tokens", "head"} if side.name == "gpt" else set()
    kinds = {"linear": nn.Linear, "conv": nn.Conv2d}
    return [
        path
        for path in side.layers(category)
        if type(side.model.get_submodule(path)) is kinds[category] and path not in tied
    ]


@fault("evaluation mode")
def evaluation_mode(side, rng):
    norms = [
        p for p in side.layers("norm") if isinstance(side.model.get_submodule(p), nn.BatchNorm2d)
    ]
    path = pick(rng, norms)
    if path:
        side.model.get_submodule(path).eval()
        return Expected(path, "other setting")
    return None


# --- weights


@fault("transposed weight")
def transposed_weight(side, rng):
    found = []
    for path in _plain(side, "linear") + _plain(side, "conv"):
        shape = side.model.get_submodule(path).weight.shape
        if shape[-1] == shape[-2] > 1:
            found.append(path)
    path = pick(rng, found)
    if path:
        weight = side.model.get_submodule(path).weight
        with torch.no_grad():
            weight.copy_(weight.transpose(-1, -2).clone())
        return Expected(path, "layout")
    return None


class _Untransposed(nn.Linear):
    def forward(self, x):
        return x @ self.weight + self.bias


@fault("product not transposed")
def product_not_transposed(side, rng):
    found = [
        p for p in _plain(side, "linear") if len(set(side.model.get_submodule(p).weight.shape)) == 1
    ]
    path = pick(rng, found)
    if path and side.policy in ("float32", BY_OP):
        side.model.get_submodule(path).__class__ = _Untransposed
        return Expected(path, "layout")
    return None


@fault("initialisation")
def initialisation(side, rng):
    path = pick(rng, _plain(side, "linear") + _plain(side, "conv"))
    if path:
        torch.manual_seed(int(rng.integers(1000)))
        weight = side.model.get_submodule(path).weight
        [nn.init.xavier_uniform_, nn.init.kaiming_normal_, lambda w: nn.init.normal_(w, 0, 0.02)][
            rng.integers(3)
        ](weight)
        return Expected(path, "initialisation")
    return None


@fault("no bias")
def no_bias(side, rng):
    found = [p for p in _plain(side, "linear") if side.model.get_submodule(p).bias is not None]
    path = pick(rng, found)
    if path:
        side.model.get_submodule(path).bias = None
        return Expected(path, "other setting")
    return None


# --- dtypes


@fault("dtype rule")
def dtype_rule(side, rng):
    if side.policy in ("float32", BY_OP):
        return None
    path = pick(rng, side.layers("linear", "conv", "attention"))
    if path:
        side.policy = mp.Policy.named(side.policy).full(path)
        return Expected(path, "dtype rule")
    return None


@fault("op list")
def op_list(side, rng):
    if side.policy != BY_OP:
        return None
    category = {"linear": "linear", "conv": "conv2d"}
    found = [c for c in category if side.layers(c)]
    chosen = pick(rng, found)
    if chosen is None or side.name == "gan":
        return None
    side.policy = mp.Policy.named(side.policy).full(op=category[chosen])
    # Attention is made of products, too.
    return Expected(side.layers(chosen, "attention")[0], "op list")


def _float_output(kind):
    class Widened(kind):
        def forward(self, x):
            return super().forward(x).float()

    Widened.__name__ = kind.__name__
    return Widened


@fault("missing cast")
def missing_cast(side, rng):
    if side.policy == "float32":
        return None
    path = pick(rng, _plain(side, "linear")[:-1] + _plain(side, "conv")[:-1])
    if path and side.policy == BY_OP:
        layer = side.model.get_submodule(path)
        layer.__class__ = _float_output(type(layer))
        return Expected(path, "missing cast")
    return None


class _Disabled(nn.Linear):
    """Leaves autocast for one product."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return functional.linear(x.float(), self.weight, self.bias)


@fault("autocast switched off")
def autocast_off(side, rng):
    path = pick(rng, _plain(side, "linear"))
    if path and side.policy == BY_OP:
        side.model.get_submodule(path).__class__ = _Disabled
        return Expected(path, "missing cast")
    return None


class _NarrowNorm(nn.LayerNorm):
    def forward(self, x):
        low = torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            y = functional.layer_norm(
                x.to(low), self.normalized_shape, self.weight.to(low), self.bias.to(low), self.eps
            )
        return y.to(x.dtype)


@fault("reduction dtype of a norm")
def reduction_dtype(side, rng):
    found = [p for p in side.layers("norm") if type(side.model.get_submodule(p)) is nn.LayerNorm]
    path = pick(rng, found)
    if path:
        side.model.get_submodule(path).__class__ = _NarrowNorm
        return Expected(path, "reduction dtype")
    return None


@fault("loss in 16 bits")
def loss_in_16_bits(side, rng):
    if side.name in ("gan", "gpt", "lstm", "gru", "encoder"):
        return None
    model = side.model
    side.loss = lambda x, y: functional.cross_entropy(model(x).bfloat16(), y.long())
    return Expected("(loss)", ("reduction dtype", "missing cast"))


# --- loss and data


def _classifies(side):
    return side.name in ("mlp", "cnn", "resnet", "separable", "unet")


@fault("loss reduction")
def loss_reduction(side, rng):
    if not _classifies(side):
        return None
    model = side.model
    side.loss = lambda x, y: functional.cross_entropy(model(x), y.long(), reduction="sum")
    return Expected("(loss)", "loss reduction")


@fault("label shift in the batch")
def label_shift(side, rng):
    if not _classifies(side):
        return None
    side.batch = (side.batch[0], (side.batch[1] + 1).clamp(max=4), *side.batch[2:])
    return Expected("batch[1]", "label")


@fault("label shift in the loss")
def label_shift_in_loss(side, rng):
    if not _classifies(side):
        return None
    model, by = side.model, int(rng.integers(1, 4))
    side.loss = lambda x, y: functional.cross_entropy(model(x), (y.long() + by) % 5)
    return Expected("(loss)", "label")


@fault("data order")
def data_order(side, rng):
    count = len(side.batch[0])
    order = torch.from_numpy(np.roll(rng.permutation(count), 1))
    if (order == torch.arange(count)).all():
        order = order.flip(0)
    side.batch = tuple(x[order] for x in side.batch)
    return Expected(tuple(f"batch[{i}]" for i in range(len(side.batch))), "data order")


@fault("inputs not scaled")
def inputs_not_scaled(side, rng):
    if not _classifies(side):
        return None
    side.batch = (side.batch[0] * 2 - 0.5, *side.batch[1:])
    return Expected("batch[0]", "other setting")


# --- code between layers


@fault("no residual")
def no_residual(side, rng):
    found = [p for p in ("layer1", "layer2") if side.name == "encoder"]
    path = pick(rng, found)
    if path:
        layer = side.model.get_submodule(path)

        def forward(x):
            x = layer.norm1(layer.attention(x, x, x, need_weights=False)[0])
            return layer.norm2(x + layer.down(layer.gelu(layer.up(x))))

        layer.forward = forward
        return Expected(path, ("other setting", "unknown"))
    return None


@fault("scale of attention")
def scale_of_attention(side, rng):
    if side.name != "gpt":
        return None
    block = side.model.block1

    def attend(x):
        batch, length, _ = x.shape
        q, k, v = block.qkv(x).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2)
        weights = block.softmax(scores.masked_fill(block.future, -1e4)).to(v.dtype)
        return block.proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))

    block.attend = attend
    return Expected(("block1", "block1.softmax"), ("other setting", "unknown"))


# --- optimizer and loss scale


def _constant(name, value):
    def plant(side, rng):
        side.optimizer[name] = value(rng) if callable(value) else value
        return Expected("(optimizer)", "optimizer constants")

    return plant


fault("learning rate")(_constant("lr", lambda rng: float(rng.choice([0.1, 0.01, 0.045]))))
fault("momentum of SGD")(_constant("momentum", lambda rng: float(rng.choice([0.0, 0.5, 0.95]))))
fault("nesterov")(_constant("nesterov", True))
fault("weight decay")(_constant("weight_decay", lambda rng: float(rng.choice([0.1, 0.01]))))
fault("adam beta1")(_constant("betas", (0.5, 0.999)))
fault("adam beta2")(_constant("betas", (0.9, 0.99)))
fault("adam eps")(_constant("eps", 1e-2))
fault("adam learning rate")(_constant("lr", 3e-3))
fault("adam weight decay")(_constant("weight_decay", 1.0))

_OVERFLOWS = 200


def _run(rule, steps):
    state, found = initial_state(rule), []
    for finite in steps:
        found.append((float(state.scale), finite))
        state = advance(rule, state, finite)
    return tuple(found)


@fault("scaler rule")
def scaler_rule(side, rng):
    if side.policy != "mixed_float16":
        return None
    changes = [
        {"growth_interval": 5},
        {"backoff_factor": 0.25},
        {"min_scale": 2.0**-10},
        {"init_scale": 2.0**15},
        {"growth_factor": 4.0},
    ]
    # Long enough without a growth to reach the floor, and to grow.
    steps = [bool(flag) for flag in rng.random(_OVERFLOWS) > 0.3]
    steps = [False] * 20 + steps
    rule = mp.LossScale(growth_interval=3, init_scale=2.0**16)
    other = replace(rule, **changes[rng.integers(len(changes))])
    side.after = lambda found: replace(found, trajectory=_run(other, steps))
    return Expected("(loss scale)", "scaler rule")


def trajectory_of_reference(side: Side, rng: np.random.Generator) -> None:
    steps = [False] * 20 + [bool(flag) for flag in rng.random(_OVERFLOWS) > 0.3]
    rule = mp.LossScale(growth_interval=3, init_scale=2.0**16)
    side.after = lambda found: replace(found, trajectory=_run(rule, steps))


BOTH["scaler rule"] = trajectory_of_reference
