"""The ten architectures in PyTorch; its epsilons (1e-5) and momenta are everybody's."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
import zoo
from torch import nn
from torch.nn import functional
from zoo import CLASSES, FEATURES, HEADS, LENGTH, NOISE, VOCABULARY, WIDTH

import mpcore as mp
from mpcore_torch.layers import leaves


def mlp() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(FEATURES, 32),
            relu1=nn.ReLU(),
            fc2=nn.Linear(32, 32),
            relu2=nn.ReLU(),
            head=nn.Linear(32, CLASSES),
        )
    )


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8 * 4 * 4, CLASSES)

    def forward(self, x):
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        return self.head(self.dropout(self.flatten(x)))


def conv_norm(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1):
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return OrderedDict(conv=conv, norm=nn.BatchNorm2d(outside))


class ResidualBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inside == outside
            else nn.Sequential(conv_norm(inside, outside, 1, stride))
        )

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(**conv_norm(3, 4, 3), relu=nn.ReLU()))
        self.block1 = ResidualBlock(4, 4, 1)
        self.block2 = ResidualBlock(4, 8, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.block2(self.block1(self.stem(x)))
        return self.head(self.pool(x).flatten(1))


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(**conv_norm(3, 4, 3), relu=nn.ReLU6()))
        self.depthwise = nn.Sequential(OrderedDict(**conv_norm(4, 4, 3, groups=4), relu=nn.ReLU6()))
        self.pointwise = nn.Sequential(OrderedDict(**conv_norm(4, 8, 1), relu=nn.ReLU6()))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.pointwise(self.depthwise(self.stem(x)))
        return self.head(self.pool(x).flatten(1))


def conv_group_norm(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(inside, outside, 3, padding=1),
            norm=nn.GroupNorm(2, outside),
            relu=nn.ReLU(),
        )
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = conv_group_norm(3, 4)
        self.pool = nn.MaxPool2d(2)
        self.bottom = conv_group_norm(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.merge = conv_group_norm(8, 4)
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x):
        skip = self.down(x)
        x = self.up(self.bottom(self.pool(skip)))
        return self.head(self.merge(torch.cat([skip, x], dim=1)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        output, _ = self.rnn(self.embed(tokens))
        return self.head(output[:, -1])


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        output, _ = self.rnn(self.embed(tokens))
        return self.head(output[:, -1])


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.gelu = nn.GELU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.down(self.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layer1 = EncoderLayer()
        self.layer2 = EncoderLayer()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layer2(self.layer1(self.tokens(tokens) + self.positions(places)))
        return self.head(x.mean(dim=1))


class GptBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.softmax = nn.Softmax(-1)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH).triu(1).bool(), persistent=False)

    def attend(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * k.shape[-1] ** -0.5
        weights = self.softmax(scores.masked_fill(self.future, -1e4)).to(v.dtype)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.block1 = GptBlock()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        return self.head(self.norm(self.block1(x)))


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(NOISE, 8 * 4 * 4)
        self.unflatten = nn.Unflatten(1, (8, 4, 4))
        self.norm1 = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU()
        self.up1 = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(4)
        self.relu2 = nn.ReLU()
        self.up2 = nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1)
        self.tanh = nn.Tanh()

    def forward(self, z):
        x = self.relu1(self.norm1(self.unflatten(self.fc(z))))
        x = self.relu2(self.norm2(self.up1(x)))
        return self.tanh(self.up2(x))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 4, stride=2, padding=1)
        self.leaky1 = nn.LeakyReLU(0.2)
        self.conv2 = nn.Conv2d(4, 8, 4, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.leaky2 = nn.LeakyReLU(0.2)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(8 * 4 * 4, 1)

    def forward(self, x):
        x = self.leaky1(self.conv1(x))
        x = self.leaky2(self.norm(self.conv2(x)))
        return self.fc(self.flatten(x))


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = Generator()
        self.d = Discriminator()

    def forward(self, z):
        return self.d(self.g(z))


def classify(model):
    return lambda x, y: functional.cross_entropy(model(x), y.long())


def classify_weighted(model):
    def loss(tokens, y, weights):
        logits = model(tokens)
        each = functional.cross_entropy(logits.flatten(0, -2), y.long().flatten(), reduction="none")
        return (each.view(len(weights), -1) * weights[:, None]).mean()

    return loss


def adversarial(model):
    def generator(z, real):
        return functional.softplus(-model.d(model.g(z)).float()).mean()

    def discriminator(z, real):
        fake = model.d(model.g(z).detach()).float()
        return (functional.softplus(fake) + functional.softplus(-model.d(real).float())).mean()

    return {"g": generator, "d": discriminator}


def _sgd(part: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(part.parameters(), zoo.LEARNING_RATE, momentum=zoo.MOMENTUM)


def _entry(name, make, loss=classify, optimizer=_sgd):
    def build():
        torch.manual_seed(0)
        return make()

    return zoo.Entry(build, zoo.BATCHES[name], tensors, loss, optimizer, forward, seen, still)


def tensors(batch: zoo.Batch) -> tuple[torch.Tensor, ...]:
    return tuple(map(torch.from_numpy, batch))


def forward(model: nn.Module, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    model.eval()
    with torch.no_grad():
        output = model(torch.from_numpy(x)).numpy()
    model.train()
    return output


def seen(model: nn.Module, amp: mp.Amp, x: np.ndarray, *_: np.ndarray):
    found, handles = {}, []
    for path, module in leaves(model).items():

        def hook(_module, args, output, path=path):
            found[path] = first_float(args), first_float(output)

        handles.append(module.register_forward_hook(hook))
    with amp.autocast():
        model(torch.from_numpy(x))
    for handle in handles:
        handle.remove()
    return found


def still(model: nn.Module) -> None:
    model.dropout.p = 0.0


def first_float(value) -> str:
    if isinstance(value, tuple):
        return next(filter(None, map(first_float, value)), "")
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return str(value.dtype).removeprefix("torch.") if is_float else ""


def _two(model: Gan) -> dict[str, torch.optim.Optimizer]:
    return {"g": _sgd(model.g), "d": _sgd(model.d)}


ZOO = {
    "mlp": _entry("mlp", mlp),
    "cnn": _entry("cnn", Cnn),
    "resnet": _entry("resnet", ResNet),
    "separable": _entry("separable", Separable),
    "unet": _entry("unet", UNet),
    "lstm": _entry("lstm", Lstm, classify_weighted),
    "gru": _entry("gru", Gru, classify_weighted),
    "encoder": _entry("encoder", Encoder, classify_weighted),
    "gpt": _entry("gpt", Gpt, classify_weighted),
    "gan": _entry("gan", Gan, adversarial, _two),
}
