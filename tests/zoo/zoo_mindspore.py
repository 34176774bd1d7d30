"""The ten architectures in MindSpore, of layers that its CPU build has.

Convolutions pad to the same size and have no bias unless told; LayerNorm's epsilon and GELU are
others than torch's: all are given.
"""

from __future__ import annotations

from collections import OrderedDict

import mindspore as ms
import numpy as np
import zoo
from mindspore import Tensor, nn, ops
from zoo import CLASSES, EPS, FEATURES, HEADS, LENGTH, NOISE, VOCABULARY, WIDTH

import mpcore as mp
from mpcore_mindspore.layers import leaves


def mlp() -> nn.Cell:
    return nn.SequentialCell(
        OrderedDict(
            fc1=nn.Dense(FEATURES, 32),
            relu1=nn.ReLU(),
            fc2=nn.Dense(32, 32),
            relu2=nn.ReLU(),
            head=nn.Dense(32, CLASSES),
        )
    )


def conv(inside: int, outside: int, kernel: int, stride: int = 1, *, group: int = 1, bias=True):
    padding = (kernel - 1) // 2
    return nn.Conv2d(inside, outside, kernel, stride, "pad", padding, group=group, has_bias=bias)


class Cnn(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv(3, 4, 3)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2, 2)
        self.conv2 = conv(4, 8, 3)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.dropout = nn.Dropout(p=0.1)
        self.head = nn.Dense(8 * 4 * 4, CLASSES)

    def construct(self, x):
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        return self.head(self.dropout(self.flatten(x)))


def conv_norm(inside: int, outside: int, kernel: int, stride: int = 1, group: int = 1):
    return OrderedDict(
        conv=conv(inside, outside, kernel, stride, group=group, bias=False),
        norm=nn.BatchNorm2d(outside, eps=EPS, momentum=0.9),
    )


class ResidualBlock(nn.Cell):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inside, outside, 3, stride, bias=False)
        self.norm1 = nn.BatchNorm2d(outside, eps=EPS, momentum=0.9)
        self.relu = nn.ReLU()
        self.conv2 = conv(outside, outside, 3, bias=False)
        self.norm2 = nn.BatchNorm2d(outside, eps=EPS, momentum=0.9)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inside == outside
            else nn.SequentialCell(conv_norm(inside, outside, 1, stride))
        )

    def construct(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(OrderedDict(**conv_norm(3, 4, 3), relu=nn.ReLU()))
        self.block1 = ResidualBlock(4, 4, 1)
        self.block2 = ResidualBlock(4, 8, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Dense(8, CLASSES)

    def construct(self, x):
        x = self.block2(self.block1(self.stem(x)))
        return self.head(self.pool(x).flatten(start_dim=1))


class Separable(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.SequentialCell(OrderedDict(**conv_norm(3, 4, 3), relu=nn.ReLU6()))
        self.depthwise = nn.SequentialCell(
            OrderedDict(**conv_norm(4, 4, 3, group=4), relu=nn.ReLU6())
        )
        self.pointwise = nn.SequentialCell(OrderedDict(**conv_norm(4, 8, 1), relu=nn.ReLU6()))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Dense(8, CLASSES)

    def construct(self, x):
        x = self.pointwise(self.depthwise(self.stem(x)))
        return self.head(self.pool(x).flatten(start_dim=1))


def conv_group_norm(inside: int, outside: int) -> nn.SequentialCell:
    norm = nn.GroupNorm(2, outside, eps=EPS)
    return nn.SequentialCell(OrderedDict(conv=conv(inside, outside, 3), norm=norm, relu=nn.ReLU()))


class UNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down = conv_group_norm(3, 4)
        self.pool = nn.MaxPool2d(2, 2)
        self.bottom = conv_group_norm(4, 8)
        self.up = nn.Conv2dTranspose(8, 4, 2, 2, "valid", has_bias=True)
        self.merge = conv_group_norm(8, 4)
        self.head = conv(4, CLASSES, 1)

    def construct(self, x):
        skip = self.down(x)
        x = self.up(self.bottom(self.pool(skip)))
        return self.head(self.merge(ops.cat((skip, x), axis=1)))


class Recurrent(nn.Cell):
    def __init__(self, rnn: nn.Cell) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = rnn
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, tokens):
        output, _ = self.rnn(self.embed(tokens))
        return self.head(output[:, -1])


def lstm() -> nn.Cell:
    return Recurrent(nn.LSTM(WIDTH, WIDTH, batch_first=True))


def gru() -> nn.Cell:
    return Recurrent(nn.GRU(WIDTH, WIDTH, batch_first=True))


class EncoderLayer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.up = nn.Dense(WIDTH, 2 * WIDTH)
        self.gelu = nn.GELU(approximate=False)
        self.down = nn.Dense(2 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPS)

    def construct(self, x):
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.down(self.gelu(self.up(x))))


class Encoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layer1 = EncoderLayer()
        self.layer2 = EncoderLayer()
        self.head = nn.Dense(WIDTH, CLASSES)
        self.places = Tensor(np.arange(LENGTH, dtype=np.int32))

    def construct(self, tokens):
        x = self.layer2(self.layer1(self.tokens(tokens) + self.positions(self.places)))
        return self.head(x.mean(axis=1))


class GptBlock(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.qkv = nn.Dense(WIDTH, 3 * WIDTH)
        self.softmax = nn.Softmax(-1)
        self.proj = nn.Dense(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.up = nn.Dense(WIDTH, 4 * WIDTH)
        self.gelu = nn.GELU(approximate=True)
        self.down = nn.Dense(4 * WIDTH, WIDTH)
        self.future = Tensor(np.triu(np.ones((LENGTH, LENGTH), bool), k=1))

    def attend(self, x):
        batch = x.shape[0]
        qkv = self.qkv(x).reshape(batch, LENGTH, 3, HEADS, WIDTH // HEADS)
        q, k, v = ops.unstack(qkv.transpose(2, 0, 3, 1, 4), axis=0)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) * (WIDTH // HEADS) ** -0.5
        weights = self.softmax(scores.masked_fill(self.future, -1e4)).astype(v.dtype)
        return self.proj(ops.matmul(weights, v).swapaxes(1, 2).reshape(batch, LENGTH, WIDTH))

    def construct(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Gpt(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.block1 = GptBlock()
        self.norm = nn.LayerNorm((WIDTH,), epsilon=EPS)
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)
        self.head.weight = self.tokens.embedding_table
        self.places = Tensor(np.arange(LENGTH, dtype=np.int32))

    def construct(self, tokens):
        x = self.tokens(tokens) + self.positions(self.places)
        return self.head(self.norm(self.block1(x)))


class Generator(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(NOISE, 8 * 4 * 4)
        self.unflatten = nn.Unflatten(1, (8, 4, 4))
        self.norm1 = nn.BatchNorm2d(8, eps=EPS, momentum=0.9)
        self.relu1 = nn.ReLU()
        self.up1 = nn.Conv2dTranspose(8, 4, 4, 2, "pad", 1, has_bias=False)
        self.norm2 = nn.BatchNorm2d(4, eps=EPS, momentum=0.9)
        self.relu2 = nn.ReLU()
        self.up2 = nn.Conv2dTranspose(4, 3, 4, 2, "pad", 1, has_bias=True)
        self.tanh = nn.Tanh()

    def construct(self, z):
        x = self.relu1(self.norm1(self.unflatten(self.fc(z))))
        x = self.relu2(self.norm2(self.up1(x)))
        return self.tanh(self.up2(x))


class Discriminator(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv(3, 4, 4, 2)
        self.leaky1 = nn.LeakyReLU(0.2)
        self.conv2 = conv(4, 8, 4, 2, bias=False)
        self.norm = nn.BatchNorm2d(8, eps=EPS, momentum=0.9)
        self.leaky2 = nn.LeakyReLU(0.2)
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(8 * 4 * 4, 1)

    def construct(self, x):
        x = self.leaky1(self.conv1(x))
        x = self.leaky2(self.norm(self.conv2(x)))
        return self.fc(self.flatten(x))


class Gan(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.g = Generator()
        self.d = Discriminator()

    def construct(self, z):
        return self.d(self.g(z))


def classify(model):
    def loss(x, y):
        return ops.cross_entropy(model(x), y)

    return loss


def classify_weighted(model):
    def loss(tokens, y, weights):
        logits = model(tokens)
        flat = logits.reshape((-1, logits.shape[-1]))
        each = ops.cross_entropy(flat, y.reshape((-1,)), reduction="none")
        return (each.reshape((weights.shape[0], -1)) * weights.reshape((-1, 1))).mean()

    return loss


def adversarial(model):
    def score(image):
        return model.d(image).astype(ms.float32)

    def generator(z, real):
        return ops.softplus(-score(model.g(z))).mean()

    def discriminator(z, real):
        fake = score(ops.stop_gradient(model.g(z)))
        return (ops.softplus(fake) + ops.softplus(-score(real))).mean()

    return {"g": generator, "d": discriminator}


def _sgd(part: nn.Cell) -> nn.Optimizer:
    return nn.Momentum(part.trainable_params(), zoo.LEARNING_RATE, zoo.MOMENTUM)


def _two(model: Gan) -> dict[str, nn.Optimizer]:
    return {"g": _sgd(model.g), "d": _sgd(model.d)}


def tensors(batch: zoo.Batch) -> tuple[Tensor, ...]:
    return tuple(map(Tensor, batch))


def forward(model: nn.Cell, x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    model.set_train(False)
    output = model(Tensor(x)).asnumpy()
    model.set_train()
    return output


def seen(model: nn.Cell, amp: mp.Amp, x: np.ndarray, *_: np.ndarray):
    found, handles = {}, []
    for path, (cell, _) in leaves(model).items():

        def hook(_cell, inputs, output, path=path):
            found[path] = first_float(inputs), first_float(output)

        handles.append(cell.register_forward_hook(hook))
    with amp.autocast():
        model(Tensor(x))
    for handle in handles:
        handle.remove()
    return found


def still(model: nn.Cell) -> None:
    model.dropout = nn.Dropout(p=0.0)


def first_float(value) -> str:
    if isinstance(value, (tuple, list)):
        return next(filter(None, map(first_float, value)), "")
    name = str(value.dtype).lower() if isinstance(value, Tensor) else ""
    return name if "float" in name else ""


def _entry(name, make, loss=classify, optimizer=_sgd):
    def build():
        ms.set_seed(0)
        return make().set_train()

    return zoo.Entry(build, zoo.BATCHES[name], tensors, loss, optimizer, forward, seen, still)


ZOO = {
    "mlp": _entry("mlp", mlp),
    "cnn": _entry("cnn", Cnn),
    "resnet": _entry("resnet", ResNet),
    "separable": _entry("separable", Separable),
    "unet": _entry("unet", UNet),
    "lstm": _entry("lstm", lstm, classify_weighted),
    "gru": _entry("gru", gru, classify_weighted),
    "encoder": _entry("encoder", Encoder, classify_weighted),
    "gpt": _entry("gpt", Gpt, classify_weighted),
    "gan": _entry("gan", Gan, adversarial, _two),
}
