"""The four architectures of ``novel`` in PyTorch."""

from __future__ import annotations

import fresh_torch
import torch
from novel import COLOURS, STEERS, allowed, turns, wrong
from torch import nn
from torch.nn import functional
from unseen import HIDDEN
from zoo import CLASSES, FEATURES, VOCABULARY, WIDTH
from zoo_torch import _entry


def turned(x):
    cosine, sine = (torch.from_numpy(v) for v in turns(x.shape[1]))
    wide = x.float()
    if wrong("rotary pairs side by side"):
        other = torch.stack([-wide[..., 1::2], wide[..., ::2]], -1).flatten(-2)
    else:
        first, second = wide.chunk(2, -1)
        other = torch.cat([-second, first], -1)
    return (wide * cosine + other * sine).to(x.dtype)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.share = nn.Softmax(-1)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query, key = turned(self.query(x)), turned(self.key(x))
        if wrong("query and key swapped"):
            query, key = key, query
        scores = query @ key.transpose(1, 2) / WIDTH**0.5
        scores = scores.float() + torch.from_numpy(allowed(x.shape[1]))
        if wrong("softmax over queries"):
            share = self.share(scores.transpose(1, 2)).transpose(1, 2)
        else:
            share = self.share(scores)
        return self.out(share.to(x.dtype) @ self.value(x))


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attend = Attend()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens)
        near = self.norm1(x)
        x = (near if wrong("residual behind the norm") else x) + self.attend(near)
        return self.head(x + self.down(self.gelu(self.up(self.norm2(x)))))


def next_token(model):
    def loss(tokens, y, weights):
        logits, y = model(tokens).float(), y.long()
        if wrong("last token without loss"):
            logits, y = logits[:, :-1], y[:, :-1]
        each = functional.cross_entropy(logits.transpose(1, 2), y, reduction="none")
        return (each * weights[:, None]).mean()

    return loss


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.relu = nn.ReLU()
        self.project = nn.Linear(HIDDEN, WIDTH)
        self.hidden = nn.Linear(WIDTH, HIDDEN)
        self.bent = nn.ELU()
        self.back = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, other):
        if wrong("both views in one batch"):
            seen = self.seen(torch.cat([x, other])).chunk(2)
        else:
            seen = self.seen(x), self.seen(other)
        return *seen, *(self.back(self.bent(self.hidden(z))) for z in seen)

    def seen(self, x):
        if wrong("norm with running statistics"):
            self.norm.eval()
        return self.project(self.relu(self.norm(self.enter(x))))


def alike(model):
    def near(told, target):
        target = target if wrong("target not detached") else target.detach()
        if not wrong("views not normalised"):
            told, target = functional.normalize(told, dim=-1), functional.normalize(target, dim=-1)
        return -(told * target).sum(-1).mean()

    def loss(x, other):
        z1, z2, p1, p2 = (value.float() for value in model(x, other))
        if wrong("one of two losses"):
            return near(p1, z2)
        return 0.5 * (near(p1, z2) + near(p2, z1))

    return loss


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, WIDTH, 3)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, dilation=2)
        self.tanh = nn.Tanh()
        self.out = nn.Conv1d(WIDTH, 1, 1)

    def forward(self, x):
        x = self.relu1(self.conv1(functional.pad(x, (2, 0))))
        left = 4
        if wrong("dilation forgotten"):
            self.conv2.dilation, left = (1,), 2
        ends = (left - 1, 1) if wrong("padding off by one") else (left, 0)
        return self.out(x + self.tanh(self.conv2(functional.pad(x, ends)))).squeeze(1)


def masked(model):
    def loss(x, y, valid):
        each = (model(x).float() - y).square() * valid
        if wrong("loss summed in bfloat16"):
            return (each.bfloat16().sum() / valid.sum().bfloat16()).float()
        return each.mean() if wrong("mean over padding too") else each.sum() / valid.sum()

    return loss


class Steered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.film = nn.Linear(STEERS, 16)
        self.relu = nn.ReLU()
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.silu = nn.SiLU()
        self.head = nn.Conv2d(4, COLOURS, 3, padding=1)

    def forward(self, x, steer):
        scale, shift = self.film(steer)[:, :, None, None].chunk(2, 1)
        if wrong("scale and shift swapped"):
            scale, shift = shift, scale
        scale = scale if wrong("scale without one") else 1 + scale
        x = self.up(self.relu(self.norm(self.stem(x)) * scale + shift))
        if wrong("picture one pixel aside"):
            x = x.roll(1, -1)
        return self.head(self.silu(x))


class Inside(nn.Module):
    """What Keras writes as Dense(activation=...): a function behind it, and a layer."""

    def __init__(self, time_major: bool) -> None:
        super().__init__()
        self.time_major = time_major
        self.fc1 = nn.Linear(FEATURES, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, WIDTH)
        self.tanh = nn.Tanh()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = x.transpose(0, 1) if self.time_major else x
        x = self.tanh(self.fc2(functional.relu(self.fc1(x))))
        return self.head(x.mean(0 if self.time_major else 1))


def apart(model):
    def loss(x, steer, y):
        each = (model(x, steer).float() - y).abs()
        if wrong("loss summed in bfloat16"):
            return each.bfloat16().mean().float()
        return each.sum(1).mean() if wrong("sum over colours") else each.mean()

    return loss


class _Moved(torch.optim.SGD):
    """Changes each gradient before its step."""

    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in params]
        for param, grad in zip(params, grads, strict=True):
            if wrong("gradients centred") and grad.dim() > 1:
                param.grad = grad - grad.mean(tuple(range(1, grad.dim())), keepdim=True)
            elif wrong("rate by norms"):
                param.grad = grad * (param.norm() / grad.norm().clamp(min=1e-6))
        found = super().step(closure)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        return found


def optimizer(own):
    moved = wrong("gradients centred") or wrong("rate by norms")
    kind = _Moved if moved else torch.optim.SGD
    return kind(own.model.parameters(), own.optimizer["rate"], own.optimizer["momentum"])


def turn_kernel(model):
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.transpose(2, 3).clone())


MODELS = {
    "rotary": _entry("rotary", Rotary, next_token),
    "views": _entry("views", Views, alike),
    "causal": _entry("causal", Causal, masked),
    "steered": _entry("steered", Steered, apart),
    "inside": _entry("inside", lambda: Inside(False)),
    "inside_time": _entry("inside_time", lambda: Inside(True)),
}
ENTRIES = {**fresh_torch.ENTRIES, **MODELS}
