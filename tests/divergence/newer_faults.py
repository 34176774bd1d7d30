"""Mistakes of data, of losses, of wiring and of updates that newer models bring along.

Written before any rule was looked at; see ``campaign.py`` for how they are drawn and scored.
"""

from __future__ import annotations

import newer_torch
import planting
import torch
from planting import OPTIMIZER, Expected, fault, pick
from torch import nn
from torch.nn import functional

planting.MODELS.update(newer_torch.MODELS)

CLASSIFIERS = ("mlp", "cnn", "resnet", "separable", "mixer", "convgru", "experts", "volume")
UNCLEAR = ("other setting", "unknown")


def _of(side, path):
    return side.model.get_submodule(path)


# --- data


@fault("colours in another order")
def colours_in_another_order(side, rng):
    x = side.batch[0]
    if x.dim() < 4 or x.shape[1] != 3 or side.name == "gan":
        return None
    side.batch = (x.flip(1), *side.batch[1:])
    return Expected("batch[0]", ("data order", "layout"))


@fault("tokens off by one")
def tokens_off_by_one(side, rng):
    if side.batch[0].is_floating_point():
        return None
    side.batch = ((side.batch[0] + 1) % 20, *side.batch[1:])
    return Expected("batch[0]", UNCLEAR)


@fault("an example twice")
def an_example_twice(side, rng):
    if side.name == "gan":
        return None
    side.batch = tuple(torch.cat([x[:-1], x[:1]]) for x in side.batch)
    return Expected("batch[0]", ("data order", *UNCLEAR))


@fault("edges not normalised")
def edges_not_normalised(side, rng):
    if side.name != "graph":
        return None
    x, near, y = side.batch
    side.batch = (x, (near > 0).float(), y)
    return Expected("batch[1]", UNCLEAR)


# --- losses


@fault("temperature")
def temperature(side, rng):
    if side.name not in CLASSIFIERS:
        return None
    model, at = side.model, float(rng.choice([2.0, 0.5]))
    side.loss = lambda x, y: functional.cross_entropy(model(x) / at, y.long())
    return Expected("(loss)", ("loss reduction", *UNCLEAR))


@fault("weights of classes")
def weights_of_classes(side, rng):
    if side.name not in (*CLASSIFIERS, "attunet", "unet", "bnunet"):
        return None
    model, weight = side.model, torch.tensor([0.2, 1.0, 3.0, 0.7, 1.4])
    side.loss = lambda x, y: functional.cross_entropy(model(x).float(), y.long(), weight)
    return Expected("(loss)", ("loss reduction", "label", *UNCLEAR))


@fault("a penalty on the logits")
def a_penalty_on_the_logits(side, rng):
    if side.name not in CLASSIFIERS:
        return None
    model = side.model

    def loss(x, y):
        logits = model(x).float()
        return functional.cross_entropy(logits, y.long()) + 0.1 * logits.square().mean()

    side.loss = loss
    return Expected("(loss)", UNCLEAR)


# --- settings of layers, and their wiring


@fault("softmax along another axis")
def softmax_along_another_axis(side, rng):
    path = pick(rng, side.of(nn.Softmax))
    if path:
        _of(side, path).dim = 0
        return Expected(path, "other setting")
    return None


@fault("alpha of ELU")
def alpha_of_elu(side, rng):
    path = pick(rng, side.of(nn.ELU))
    if path:
        _of(side, path).alpha = float(rng.choice([0.5, 1.5]))
        return Expected(path, "activation variant")
    return None


@fault("gate without a sigmoid")
def gate_without_a_sigmoid(side, rng):
    path = pick(rng, side.of(nn.Sigmoid))
    if path:
        side.swap(path, lambda old: nn.Hardsigmoid())
        return Expected(path, ("activation variant", "other setting"))
    return None


@fault("dilation")
def dilation(side, rng):
    found = [p for p in side.of(nn.Conv2d, nn.Conv1d) if _of(side, p).padding[0] == 1]
    path = pick(rng, [p for p in found if _of(side, p).kernel_size[0] == 3])
    if path:
        conv = _of(side, path)
        conv.dilation, conv.padding = (2,) * len(conv.dilation), (2,) * len(conv.padding)
        return Expected(path, ("other setting", "padding"))
    return None


@fault("two layers exchanged")
def two_layers_exchanged(side, rng):
    shapes = {}
    for path in side.of(nn.Linear, nn.Conv2d):
        shapes.setdefault(tuple(_of(side, path).weight.shape), []).append(path)
    found = [paths for paths in shapes.values() if len(paths) > 1]
    if not found:
        return None
    first, second = found[rng.integers(len(found))][:2]
    weights = _of(side, first).weight, _of(side, second).weight
    kept = [w.detach().clone() for w in weights]
    with torch.no_grad():
        weights[0].copy_(kept[1])
        weights[1].copy_(kept[0])
    return Expected((first, second), ("initialisation", "layout"))


@fault("sum for mean")
def sum_for_mean(side, rng):
    if side.name != "graph":
        return None
    model = side.model

    def forward(x, near):
        x = model.conv2(model.conv1(x, near), near).sum(1)
        return model.head(model.elu(model.hidden(x)))

    model.forward = forward
    return Expected(("", "hidden"), UNCLEAR)


@fault("an expert forgotten")
def an_expert_forgotten(side, rng):
    if side.name != "experts":
        return None
    model = side.model

    def forward(x):
        x = model.enter(x)
        share = model.share(model.gate(x))
        told = torch.stack([model.expert1(x), model.expert2(x), 0 * model.expert3(x)], -1)
        return model.head(model.norm(x + (told * share[:, None].to(told.dtype)).sum(-1)))

    model.forward = forward
    return Expected(("", "norm"), UNCLEAR)


@fault("decay of another form")
def decay_of_another_form(side, rng):
    if side.name != "timemix":
        return None
    with torch.no_grad():
        side.model.time1.decay.neg_()
    return Expected("time1", ("initialisation", *UNCLEAR))


@fault("skip behind the gate")
def skip_behind_the_gate(side, rng):
    if side.name != "attunet":
        return None
    gate = side.model.look1

    def forward(skip, above):
        score = gate.score(gate.relu(gate.skip(skip) + gate.above(above)))
        return above * gate.gate(score)

    gate.forward = forward
    return Expected("look1", UNCLEAR)


@fault("norm of one sample")
def norm_of_one_sample(side, rng):
    path = pick(rng, side.of(nn.BatchNorm2d))
    if path:
        old = _of(side, path)
        new = nn.InstanceNorm2d(old.num_features, old.eps, affine=True)
        with torch.no_grad():
            new.weight.copy_(old.weight)
            new.bias.copy_(old.bias)
        side.swap(path, lambda _: new)
        return Expected(path, UNCLEAR)
    return None


# --- the update


@fault("gradients not cleared")
def gradients_not_cleared(side, rng):
    if side.name == "gan":
        return None
    side.kind = _Kept
    return Expected(OPTIMIZER, ("optimizer constants", *UNCLEAR))


class _Kept(torch.optim.SGD):
    """Adds what earlier steps left."""

    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in params]
        kept = self.__dict__.setdefault("kept", [torch.zeros_like(g) for g in grads])
        for param, own, grad in zip(params, kept, grads, strict=True):
            own.add_(grad)
            param.grad = own.clone()
        found = super().step(closure)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        return found


@fault("decay beside the rate")
def decay_beside_the_rate(side, rng):
    if side.name == "gan":
        return None
    side.optimizer, side.kind = {"lr": 1e-2, "weight_decay": 0.3}, torch.optim.AdamW
    return Expected(OPTIMIZER, "optimizer constants")


@planting.both("decay beside the rate")
def _within(side, rng):
    side.optimizer, side.kind = {"lr": 1e-2, "weight_decay": 0.3}, torch.optim.Adam


@fault("gradient of one layer halved")
def gradient_of_one_layer_halved(side, rng):
    path = pick(rng, side.of(nn.Linear, nn.Conv2d))
    if path and side.name != "gan":
        _of(side, path).weight.register_hook(lambda grad: 0.5 * grad)
        return Expected(path, UNCLEAR)
    return None


@fault("gradients of signs")
def gradients_of_signs(side, rng):
    if side.name == "gan":
        return None
    side.kind = _Signs
    return Expected(OPTIMIZER, ("optimizer constants", *UNCLEAR))


class _Signs(torch.optim.SGD):
    """Moves by the sign of each gradient."""

    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in params]
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.sign() * grad.abs().mean()
        found = super().step(closure)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        return found
