"""Mistakes that were thought of after the hypotheses had been written."""

from __future__ import annotations

import torch
from planting import BY_OP, Expected, fault, pick
from torch import nn
from torch.nn import functional

import mpcore as mp


def _of(side, *kinds):
    """Return the layers of exactly these classes."""
    tied = {"tokens", "head"} if side.name == "gpt" else set()
    return [
        path
        for path, module in side.model.named_modules()
        if type(module) in kinds and path not in tied
    ]


@fault("keras defaults of a norm")
def keras_norm(side, rng):
    path = pick(rng, _of(side, nn.BatchNorm2d))
    if path:
        norm = side.model.get_submodule(path)
        norm.eps, norm.momentum = 1e-3, 0.01
        return Expected(path, ("eps", "momentum"))
    return None


class _HandNorm(nn.LayerNorm):
    """Adds eps to the standard deviation, as some write it."""

    def forward(self, x):
        x = x.float()
        apart = x - x.mean(-1, keepdim=True)
        y = apart / (x.std(-1, keepdim=True, unbiased=False) + 0.01)
        return y * self.weight + self.bias


@fault("eps beside the root")
def eps_beside_the_root(side, rng):
    path = pick(rng, _of(side, nn.LayerNorm))
    if path and side.policy == "float32":
        side.model.get_submodule(path).__class__ = _HandNorm
        return Expected(path, "eps")
    return None


class _SampleNorm(nn.BatchNorm2d):
    """Divides by the sample's variance, n - 1."""

    def forward(self, x):
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = x.var((0, 2, 3), keepdim=True, unbiased=True)
        y = (x - mean) / (variance + self.eps).sqrt()
        return y * self.weight[:, None, None] + self.bias[:, None, None]


@fault("unbiased variance")
def unbiased_variance(side, rng):
    path = pick(rng, _of(side, nn.BatchNorm2d))
    if path and side.policy == "float32":
        side.model.get_submodule(path).__class__ = _SampleNorm
        return Expected(path, ("eps", "other setting", "unknown"))
    return None


@fault("number of groups")
def number_of_groups(side, rng):
    path = pick(rng, _of(side, nn.GroupNorm))
    if path:
        side.model.get_submodule(path).num_groups = 4
        return Expected(path, "other setting")
    return None


@fault("average instead of maximum")
def average_pool(side, rng):
    path = pick(rng, _of(side, nn.MaxPool2d))
    if path:
        side.swap(path, lambda old: nn.AvgPool2d(old.kernel_size))
        return Expected(path, "other setting")
    return None


@fault("one layer frozen")
def one_layer_frozen(side, rng):
    path = pick(rng, _of(side, nn.Linear, nn.Conv2d))
    if path:
        side.model.get_submodule(path).weight.requires_grad_(False)
        return Expected(path, ("other setting", "optimizer constants"))
    return None


class _Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x.detach())


@fault("detached input")
def detached_input(side, rng):
    found = [p for p in _of(side, nn.Linear) if p not in ("fc1", "g.fc")]
    path = pick(rng, found)
    if path and side.name in ("mlp", "cnn", "resnet", "separable"):
        side.model.get_submodule(path).__class__ = _Detached
        return Expected(path, ("other setting", "unknown"))
    return None


@fault("kernel mirrored")
def kernel_mirrored(side, rng):
    path = pick(
        rng, [p for p in _of(side, nn.Conv2d) if side.model.get_submodule(p).kernel_size[0] > 1]
    )
    if path:
        weight = side.model.get_submodule(path).weight
        with torch.no_grad():
            weight.copy_(weight.flip(2, 3))
        return Expected(path, "layout")
    return None


@fault("classes in another order")
def classes_in_another_order(side, rng):
    path = pick(rng, [p for p in ("head",) if side.name in ("mlp", "cnn", "resnet", "lstm")])
    if path:
        head = side.model.get_submodule(path)
        with torch.no_grad():
            head.weight.copy_(head.weight.roll(1, 0))
            head.bias.copy_(head.bias.roll(1, 0))
        return Expected(path, ("layout", "initialisation"))
    return None


@fault("gates in another order")
def gates_in_another_order(side, rng):
    if side.name not in ("lstm", "gru"):
        return None
    with torch.no_grad():
        for weight in side.model.rnn.parameters():
            weight.copy_(weight.roll(16, 0))
    return Expected("rnn", "layout")


@fault("label smoothing")
def label_smoothing(side, rng):
    if side.name not in ("mlp", "cnn", "resnet", "separable"):
        return None
    model = side.model
    side.loss = lambda x, y: functional.cross_entropy(model(x), y.long(), label_smoothing=0.1)
    return Expected("(loss)", ("label", "unknown", "other setting"))


@fault("loss times a number")
def loss_times(side, rng):
    if side.name not in ("mlp", "cnn", "resnet", "separable", "unet"):
        return None
    model = side.model
    side.loss = lambda x, y: 0.5 * functional.cross_entropy(model(x), y.long())
    return Expected("(loss)", "loss reduction")


@fault("weights of examples forgotten")
def example_weights(side, rng):
    if len(side.batch) < 3:
        return None
    side.batch = (*side.batch[:2], torch.ones_like(side.batch[2]))
    return Expected("batch[2]", ("other setting", "data order", "label"))


@fault("labels out of step")
def labels_out_of_step(side, rng):
    if side.name not in ("mlp", "cnn", "resnet", "separable", "unet"):
        return None
    if (side.batch[1].roll(1, 0) == side.batch[1]).all():
        return None
    side.batch = (side.batch[0], side.batch[1].roll(1, 0))
    return Expected("batch[1]", ("data order", "label"))


@fault("norm in 16 bits by rule")
def norm_by_rule(side, rng):
    path = pick(rng, side.layers("norm"))
    if path and side.policy in ("mixed_float16", "mixed_bfloat16"):
        side.policy = mp.Policy.named(side.policy).lower(path)
        return Expected(path, "dtype rule")
    return None


@fault("norms in 16 bits by list")
def norms_by_list(side, rng):
    found = list(_of(side, nn.LayerNorm))
    if found and side.policy == BY_OP:
        side.policy = mp.Policy.named(side.policy).lower(op="layer_norm")
        return Expected(found[0], "op list")
    return None


@fault("dropout in the code")
def dropout_in_the_code(side, rng):
    found = [p for p in ("layer1", "layer2") if side.name == "encoder"]
    path = pick(rng, found)
    if path:
        layer = side.model.get_submodule(path)

        def forward(x):
            x = layer.norm1(x + layer.attention(x, x, x, need_weights=False)[0])
            y = functional.dropout(layer.down(layer.gelu(layer.up(x))), 0.2)
            return layer.norm2(x + y)

        layer.forward = forward
        return Expected((path, f"{path}.norm2"), "random state")
    return None


@fault("gradient clipped in a hook")
def clipped_in_a_hook(side, rng):
    path = pick(rng, _of(side, nn.Linear, nn.Conv2d))
    if path and side.policy == "float32" and side.name != "gan":
        side.model.get_submodule(path).weight.register_hook(lambda grad: grad * 0.5)
        return Expected(path, ("other setting", "unknown"))
    return None


@fault("rate of one group")
def rate_of_one_group(side, rng):
    path = pick(rng, _of(side, nn.Linear, nn.Conv2d))
    if not path or side.name == "gan":
        return None
    names = set(side.model.get_submodule(path).parameters())

    def adjust(optimizer):
        group = optimizer.param_groups[0]
        rest = [p for p in group["params"] if p not in names]
        apart = [p for p in group["params"] if p in names]
        group["params"] = rest
        optimizer.add_param_group({**group, "params": apart, "lr": group["lr"] * 0.1})

    side.adjust.append(adjust)
    return Expected(path, "optimizer constants")


@fault("dampening")
def dampening(side, rng):
    side.optimizer["dampening"] = 0.9
    return Expected("(optimizer)", "optimizer constants")


@fault("maximise")
def maximise(side, rng):
    side.optimizer["maximize"] = True
    return Expected("(optimizer)", "optimizer constants")


@fault("no causal mask")
def no_causal_mask(side, rng):
    if side.name == "gpt":
        side.model.block1.future = torch.zeros_like(side.model.block1.future)
        return Expected(("block1", "block1.softmax"), ("other setting", "unknown"))
    return None


@fault("positions forgotten")
def positions_forgotten(side, rng):
    if side.name != "gpt":
        return None
    model = side.model
    model.forward = lambda tokens: model.head(model.norm(model.block1(model.tokens(tokens))))
    return Expected(("positions", "", "block1"), ("other setting", "unknown"))


@fault("last step of a sequence")
def last_step(side, rng):
    if side.name not in ("lstm", "gru"):
        return None
    model = side.model
    model.forward = lambda tokens: model.head(model.rnn(model.embed(tokens))[0].mean(1))
    return Expected("", ("other setting", "unknown"))
