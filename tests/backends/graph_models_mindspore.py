"""Networks that are lifted: what MindSpore's own rewriting gets wrong, and what people write."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

SCALE = 0.5


def helper(x: Any) -> Any:
    return x * SCALE


class Mlp(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(8, 16)
        self.drop = nn.Dropout(p=0.3)
        self.head = nn.Dense(16, 4)

    def construct(self, x: Any) -> Any:
        return self.head(self.drop(ops.relu(self.fc(x))))


class Child(Mlp):
    def construct(self, x: Any) -> Any:
        return super().construct(x) + 1


class Globals(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        return helper(self.d(x)) + SCALE


class ConvNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, has_bias=True), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2, 2)
        self.seq = nn.SequentialCell(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Dense(8, 4)

    def construct(self, x: Any) -> Any:
        y = self.pool(ops.relu(self.bn(self.conv(x))))
        return self.head(ops.mean(self.seq(y) + y, (2, 3)))


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Dense(16, 16) for _ in range(4))
        self.norm = nn.LayerNorm((16,))
        self.mask = Tensor(np.triu(np.ones((6, 6), np.float32), 1) * -1e4)

    def split(self, x: Any) -> Any:
        return x.reshape(x.shape[0], x.shape[1], 2, 8).swapaxes(1, 2)

    def construct(self, x: Any) -> Any:
        y = self.norm(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / 8**0.5 + self.mask
        made = ops.matmul(ops.softmax(scores, -1), v)
        return x + self.o(made.swapaxes(1, 2).reshape(x.shape))


class Gpt(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.CellList([Attention(), Attention()])
        self.head = nn.Dense(16, 20)

    def construct(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Shared(nn.Cell):
    """One Dense called in a loop, and results in a nested tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 8)

    def construct(self, x: Any, *, times: int = 3) -> Any:
        i = 0
        while i < times:
            x = self.d(x)
            i = i + 1
        return x, (x[:, :2], ops.concat([x, x], -1))


class Experts(nn.Cell):
    """Results of several Cells in a list, weighed by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Dense(8, 3)
        self.experts = nn.CellList([nn.Dense(8, 8) for _ in range(3)])

    def construct(self, x: Any) -> Any:
        weights = ops.softmax(self.gate(x), -1)
        made = ops.stack([expert(x) for expert in self.experts], -1)
        return (made * weights.expand_dims(1)).sum(-1)


class Recurrent(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 1, batch_first=True)

    def construct(self, x: Any) -> Any:
        return self.lstm(x)[0]


class Unet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 4, 3), nn.Conv2dTranspose(4, 4, 2, stride=2)
        self.norm, self.out = nn.GroupNorm(2, 4), nn.Conv2d(8, 1, 3)
        self.pool = nn.MaxPool2d(2, 2)

    def construct(self, x: Any) -> Any:
        a = ops.gelu(self.norm(self.down(x)))
        return ops.sigmoid(self.out(ops.concat((a, self.up(self.pool(a))), 1)))


class Decides(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x + 1 if x.mean() > 0 else x


class Counts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.d = 0, nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        self.count = self.count + 1
        return self.d(x) * self.count


class Named(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        return {"y": self.d(x)}


class Returns(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x


class Numpy(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        return Tensor(np.tanh(self.d(x).asnumpy()))


class Stops(nn.Cell):
    """The compiler leaves out what stops a gradient where it sees no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        y = self.d(x)
        return y - ops.stop_gradient(y.mean(0)) * 0.5


class Fails(nn.Cell):
    def construct(self, x: Any) -> Any:
        return ops.matmul(x, x)


def typed_in() -> Any:
    """Return a network whose source is in no file."""
    space: dict[str, Any] = {"nn": nn, "__name__": __name__}
    text = "class Typed(nn.Cell):\n    def construct(self, x):\n        return x + 1\n"
    exec(text, space)
    return space["Typed"]()


def local() -> Any:
    """Return a network whose class is in a function."""

    class Inner(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.d = nn.Dense(8, 8)

        def construct(self, x: Any) -> Any:
            return ops.tanh(self.d(x))

    return Inner()


def _floats(*shape: int) -> Any:
    return Tensor(np.random.RandomState(0).randn(*shape).astype(np.float32))


TOKENS = Tensor(np.arange(12).reshape(2, 6) % 20, ms.int32)
MODELS: dict[str, Any] = {
    "mlp": (Mlp, (_floats(6, 8),)),
    "super": (Child, (_floats(6, 8),)),
    "globals": (Globals, (_floats(6, 8),)),
    "local": (local, (_floats(6, 8),)),
    "conv": (ConvNet, (_floats(2, 3, 8, 8),)),
    "gpt": (Gpt, (TOKENS,)),
    "shared": (Shared, (_floats(6, 8),)),
    "experts": (Experts, (_floats(6, 8),)),
    "lstm": (Recurrent, (_floats(2, 5, 4),)),
    "unet": (Unet, (_floats(2, 1, 8, 8),)),
}
REFUSED: dict[str, Any] = {
    "decides": (Decides, "decides by the value of a Tensor"),
    "counts": (Counts, "runs Python that no graph holds"),
    "dict": (Named, "returns None or a dict"),
    "numpy": (Numpy, "runs Python that no graph holds"),
    "nothing": (Returns, "nothing of Returns was lifted"),
    "stops": (Stops, r"does not give its own gradients .* ops\.stop_gradient"),
    "typed in": (typed_in, "Typed cannot be compiled: .* source code"),
    "fails": (Fails, "Fails cannot be compiled: .* shape1"),
}
