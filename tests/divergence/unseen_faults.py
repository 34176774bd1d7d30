"""Mistakes that show in the update alone, in losses of several terms, and in newer models.

Written before the rules that find them; see ``campaign.py`` for how they are drawn and scored.
"""

from __future__ import annotations

from functools import partial

import planting
import torch
import unseen_torch
from planting import OPTIMIZER, Expected, fault, pick
from torch import nn
from torch.nn import functional

import mpcore as mp

planting.MODELS.update(unseen_torch.MODELS)


# --- the update alone


@fault("norm not clipped")
def norm_not_clipped(side, rng):
    if side.name == "gan":
        return None
    side.stepper = lambda amp, loss: partial(amp.step, loss, clip_norm=0.05)
    return Expected(OPTIMIZER, "clipping")


class _Clamped(torch.optim.SGD):
    """Clips by value in its own step, and leaves the gradients as they were."""

    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        kept = [p.grad for p in params]
        limit = 0.3 * max(float(g.abs().max()) for g in kept)
        for param, grad in zip(params, kept, strict=True):
            param.grad = grad.clamp(-limit, limit)
        found = super().step(closure)
        for param, grad in zip(params, kept, strict=True):
            param.grad = grad
        return found


@fault("clipped by value")
def clipped_by_value(side, rng):
    if side.name == "gan":
        return None
    side.kind = _Clamped
    return Expected(OPTIMIZER, "clipping")


def _scheduled(rates):
    """Return a stepper under which step k runs at ``rates[k]`` times the rate."""

    def stepper(amp, loss):
        optimizer = next(iter(amp.optimizers.values()))
        base, count = [g["lr"] for g in optimizer.param_groups], iter(range(10**6))

        def step(*batch, **more):
            factor = rates[min(next(count), len(rates) - 1)]
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
            return amp.step(loss, *batch, **more)

        return step

    return stepper


@fault("schedule off by one")
def schedule_off_by_one(side, rng):
    if side.name == "gan":
        return None
    side.stepper = _scheduled([0.2, 0.4, 0.6])
    return Expected(OPTIMIZER, "schedule")


@planting.both("schedule off by one")
def _schedule(side, rng):
    side.stepper = _scheduled([0.4, 0.6, 0.8])


@fault("warm-up forgotten")
def warm_up_forgotten(side, rng):
    return Expected(OPTIMIZER, "schedule") if side.name != "gan" else None


@planting.both("warm-up forgotten")
def _warm(side, rng):
    side.stepper = _scheduled([0.1, 0.2, 0.3])


def _grouped(choose, **settings):
    def adjust(optimizer):
        group = optimizer.param_groups[0]
        apart = [p for p in group["params"] if choose(p)]
        if apart and len(apart) < len(group["params"]):
            group["params"] = [p for p in group["params"] if not choose(p)]
            changed = {k: v(group[k]) for k, v in settings.items()}
            optimizer.add_param_group({**group, "params": apart, **changed})

    return adjust


@fault("doubled rate of biases")
def doubled_rate_of_biases(side, rng):
    if side.name in ("gan", "gpt"):
        return None
    side.adjust.append(_grouped(lambda p: p.dim() == 1, lr=lambda rate: 2 * rate))
    return Expected(OPTIMIZER, "optimizer constants")


@fault("no decay of biases and norms")
def no_decay_of_biases(side, rng):
    if side.name in ("gan", "gpt"):
        return None
    side.optimizer["weight_decay"] = 0.1
    side.adjust.append(_grouped(lambda p: p.dim() == 1, weight_decay=lambda _: 0.0))
    return Expected(OPTIMIZER, "optimizer constants")


@planting.both("no decay of biases and norms")
def _decay(side, rng):
    side.optimizer["weight_decay"] = 0.1


@fault("biases never learn")
def biases_never_learn(side, rng):
    if side.name in ("gan", "gpt"):
        return None

    def adjust(optimizer):
        group = optimizer.param_groups[0]
        group["params"] = [p for p in group["params"] if p.dim() > 1]

    side.adjust.append(adjust)
    return Expected(OPTIMIZER, ("optimizer constants", "other setting"))


@fault("padding_idx")
def padding_idx(side, rng):
    path = pick(rng, [p for p in side.of(nn.Embedding) if p in ("embed", "tokens")])
    if path and side.name in ("lstm", "gru", "encoder"):
        side.model.get_submodule(path).padding_idx = 3
        return Expected(path, "other setting")
    return None


@fault("weights untied")
def weights_untied(side, rng):
    if side.name != "gpt":
        return None
    model = side.model
    model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())
    return Expected(("tokens", "head"), "tied weights")


@fault("gradient flushed")
def gradient_flushed(side, rng):
    path = pick(rng, side.of(nn.Linear, nn.Conv2d))
    if path and side.name != "gan":
        layer = side.model.get_submodule(path)

        def flush(grad):
            return grad * (grad.abs() > 0.05 * grad.abs().max())

        layer.weight.register_hook(flush)
        return Expected(path, ("other setting", "unknown"))
    return None


# --- losses


@fault("accumulation not averaged")
def accumulation_not_averaged(side, rng):
    if side.name not in ("mlp", "unet", "mixer", "encoder", "lstm"):
        return None
    plain = planting.MODELS[side.name].loss(side.model)

    def both_halves(*batch):
        half = len(batch[0]) // 2
        return plain(*(x[:half] for x in batch)) + plain(*(x[half:] for x in batch))

    side.loss = both_halves
    return Expected(("(loss)", ""), "loss reduction")


@fault("mean for sum over the latent")
def kl_mean(side, rng):
    if side.name != "vae":
        return None
    side.loss = unseen_torch.evidence_bound(side.model, kl=lambda x: x.mean())
    return Expected("(loss)", "loss reduction")


@fault("weight of a term")
def weight_of_a_term(side, rng):
    if side.name == "vae":
        side.loss = unseen_torch.evidence_bound(side.model, weight=0.1)
    elif side.name == "detect":
        side.loss = unseen_torch.two_losses(side.model, weight=1.0)
    else:
        return None
    return Expected("(loss)", ("loss reduction", "other setting"))


@fault("boxes not smooth")
def boxes_not_smooth(side, rng):
    if side.name != "detect":
        return None
    model = side.model

    def loss(x, y, boxes):
        scores, box = (value.float() for value in model(x))
        return functional.cross_entropy(scores, y.long()) + 2 * functional.l1_loss(box, boxes)

    side.loss = loss
    return Expected("(loss)", ("other setting", "unknown"))


@fault("a class without loss")
def ignored_class(side, rng):
    if side.name not in ("mlp", "cnn", "resnet", "separable", "unet", "bnunet", "mixer"):
        return None
    model = side.model
    one = int(side.batch[1].flatten()[0])
    side.loss = lambda x, y: functional.cross_entropy(model(x), y.long(), ignore_index=one)
    return Expected("(loss)", ("label", "unknown", "loss reduction"))


# --- models


@fault("order of the skip")
def order_of_the_skip(side, rng):
    if side.name != "bnunet":
        return None
    model = side.model

    def forward(x):
        first = model.down1(x)
        second = model.down2(model.pool1(first))
        x = model.up2(model.bottom(model.pool2(second)))
        x = model.up1(model.merge2(torch.cat([x, second], 1)))
        return model.head(model.merge1(torch.cat([first, x], 1)))

    model.forward = forward
    return Expected(("", "merge2", "merge2.conv"), ("layout", "other setting", "unknown"))


@fault("noise with the variance")
def noise_with_the_variance(side, rng):
    if side.name != "vae":
        return None
    model = side.model

    def forward(x, noise):
        hidden = model.relu1(model.enter(x))
        mean, spread = model.mean(hidden), model.spread(hidden)
        z = mean + noise.to(mean.dtype) * spread.exp()
        return model.out(model.relu2(model.leave(z))), mean, spread

    model.forward = forward
    return Expected(("", "leave"), ("other setting", "unknown"))


@fault("largest for mean")
def largest_for_mean(side, rng):
    if side.name != "mixer":
        return None
    model = side.model

    def forward(x):
        x = model.patches(x).flatten(2).transpose(1, 2)
        return model.head(model.norm(model.block2(model.block1(x))).amax(1))

    model.forward = forward
    return Expected(("", "head"), ("other setting", "unknown"))


@fault("stride in the padding")
def stride_padding(side, rng):
    if side.name != "detect":
        return None
    conv = side.model.conv
    conv.__class__, conv.sides, conv.padding = _Even, (0, 1), (0, 0)
    return Expected("conv", "padding")


class _Even(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(functional.pad(x, self.sides * 2), self.weight, self.bias)


@fault("padding of a signal")
def padding_of_a_signal(side, rng):
    if side.name != "convgru":
        return None
    conv = side.model.conv1
    conv.padding_mode = "replicate"
    conv._reversed_padding_repeated_twice = [2, 2]
    return Expected("conv1", "padding")


@fault("statistics of one norm")
def statistics_of_one_norm(side, rng):
    path = pick(rng, side.of(nn.BatchNorm1d, nn.BatchNorm2d))
    if path and side.name in ("convgru", "bnunet", "detect", "resnet"):
        side.model.get_submodule(path).momentum = 0.001
        return Expected(path, "momentum")
    return None


@fault("rule for one layer")
def rule_for_one_layer(side, rng):
    path = pick(rng, side.of(nn.Conv1d, nn.ConvTranspose2d, nn.Linear))
    if path and side.policy in ("mixed_float16", "mixed_bfloat16"):
        side.policy = mp.Policy.named(side.policy).full(path)
        return Expected(path, "dtype rule")
    return None


@fault("gru read backwards")
def gru_backwards(side, rng):
    if side.name != "convgru":
        return None
    model = side.model

    def forward(x):
        x = model.relu2(model.conv2(model.relu1(model.norm1(model.conv1(x)))))
        return model.head(model.rnn(x.transpose(1, 2).flip(1))[0][:, -1])

    model.forward = forward
    return Expected(("", "rnn"), ("other setting", "unknown", "layout"))
