"""The five architectures of ``unseen`` in PyTorch."""

from __future__ import annotations

from collections import OrderedDict

import torch
import zoo_torch
from torch import nn
from torch.nn import functional
from unseen import HIDDEN, LATENT, PATCHES
from zoo import CLASSES, FEATURES, WIDTH
from zoo_torch import _entry, classify


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.across = nn.Linear(PATCHES, HIDDEN)
        self.gelu1 = nn.GELU()
        self.back = nn.Linear(HIDDEN, PATCHES)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.gelu2 = nn.GELU()
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        y = self.norm1(x).transpose(1, 2)
        x = x + self.back(self.gelu1(self.across(y))).transpose(1, 2)
        return x + self.down(self.gelu2(self.up(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.block1 = MixerBlock()
        self.block2 = MixerBlock()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.block2(self.block1(x))).mean(1))


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, HIDDEN)
        self.relu1 = nn.ReLU()
        self.mean = nn.Linear(HIDDEN, LATENT)
        self.spread = nn.Linear(HIDDEN, LATENT)
        self.leave = nn.Linear(LATENT, HIDDEN)
        self.relu2 = nn.ReLU()
        self.out = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x, noise):
        hidden = self.relu1(self.enter(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        z = mean + noise.to(mean.dtype) * (0.5 * spread).exp()
        return self.out(self.relu2(self.leave(z))), mean, spread


def evidence_bound(model, *, weight=1.0, kl=lambda x: x.sum(-1).mean()):
    def loss(x, noise):
        made, mean, spread = (value.float() for value in model(x, noise))
        apart = 0.5 * (mean.square() + spread.exp() - 1 - spread)
        return functional.mse_loss(made, x) + weight * kl(apart)

    return loss


class ConvGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, WIDTH, 5, padding=2)
        self.norm1 = nn.BatchNorm1d(WIDTH)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2)
        self.relu2 = nn.ReLU()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.relu2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.head(self.rnn(x.transpose(1, 2))[0][:, -1])


def conv_norm(inside: int, outside: int) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, 3, padding=1)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outside), relu=nn.ReLU()))


class BnUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = conv_norm(3, 4)
        self.pool1 = nn.MaxPool2d(2)
        self.down2 = conv_norm(4, 8)
        self.pool2 = nn.MaxPool2d(2)
        self.bottom = conv_norm(8, 8)
        self.up2 = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.merge2 = conv_norm(16, 8)
        self.up1 = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.merge1 = conv_norm(8, 4)
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool1(first))
        x = self.up2(self.bottom(self.pool2(second)))
        x = self.up1(self.merge2(torch.cat([second, x], 1)))
        return self.head(self.merge1(torch.cat([first, x], 1)))


class Detect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 8)
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.leaky = nn.LeakyReLU(0.1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Linear(8, CLASSES)
        self.hidden = nn.Linear(8, HIDDEN)
        self.silu = nn.SiLU()
        self.box = nn.Linear(HIDDEN, 4)

    def forward(self, x):
        x = self.pool(self.leaky(self.conv(self.stem(x)))).flatten(1)
        return self.scores(x), self.box(self.silu(self.hidden(x)))


def two_losses(model, *, weight=2.0):
    def loss(x, y, boxes):
        scores, box = (value.float() for value in model(x))
        near = functional.smooth_l1_loss(box, boxes)
        return functional.cross_entropy(scores, y.long()) + weight * near

    return loss


MODELS = {
    "mixer": _entry("mixer", Mixer, classify),
    "vae": _entry("vae", Vae, evidence_bound),
    "convgru": _entry("convgru", ConvGru, classify),
    "bnunet": _entry("bnunet", BnUNet, classify),
    "detect": _entry("detect", Detect, two_losses),
}
ENTRIES = {**zoo_torch.ZOO, **MODELS}
