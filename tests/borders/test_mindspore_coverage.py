"""MindSpore: layers of unknown classes are known by what they compute, told, or registered."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
pytestmark = pytest.mark.backend("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore import MpcoreWarning  # noqa: E402
from mpcore_mindspore.layers import list_layers  # noqa: E402


class Product(nn.Cell):
    def __init__(self, n: int) -> None:
        super().__init__()
        values = np.random.default_rng(0).standard_normal((n, n)).astype("f4")
        self.weight = Parameter(Tensor(values * 0.1), name="weight")

    def construct(self, x):
        return ms.ops.matmul(x, self.weight)


def values(*shape):
    drawn = np.random.default_rng(1).standard_normal(shape).astype("f4")
    return Parameter(Tensor(drawn * 0.1), name="w")


class Own(nn.Cell):
    """A layer with Parameters of the shapes that are given, by name."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, values(*shape))


class Turned(Own):
    def construct(self, x):
        return ops.matmul(x.reshape(-1, x.shape[-1]), self.w) + self.b


class RootMeanSquare(Own):
    def construct(self, x):
        wide = x.astype(ms.float32)
        mean = wide.pow(2).mean(-1, keep_dims=True)
        return (wide * ops.rsqrt(mean + 1e-5)).astype(x.dtype) * self.w


class Filter(Own):
    def construct(self, x):
        return ops.conv2d(x, self.w, pad_mode="same")


class Table(Own):
    def construct(self, ids):
        return self.w[ids]


class Attends(Own):
    def construct(self, x):
        q = ops.matmul(x, self.q)
        scores = ops.softmax(ops.matmul(q, q.swapaxes(-1, -2)), -1)
        return ops.matmul(scores, ops.matmul(x, self.v))


class LowRank(Own):
    def construct(self, x):
        return ops.matmul(ops.matmul(x, self.a), self.b)


class Gated(Own):
    def construct(self, x):
        return ops.matmul(ops.silu(ops.matmul(x, self.g)) * ops.matmul(x, self.u), self.d)


class Router(Own):
    def construct(self, x):
        return ops.softmax(ops.matmul(x, self.w), -1)


class Scaled(Own):
    def construct(self, x):
        return x * self.w


class Careful(Own):
    def construct(self, x):
        return ops.matmul(x.astype(ms.float32), self.w.astype(ms.float32)).astype(x.dtype)


class Powers(Own):
    def construct(self, x):
        return ops.matmul(ops.exp(x), self.w)


class ByValues(Own):
    def construct(self, x):
        if float(x.sum().asnumpy()) > 0:
            return x
        return ops.matmul(x, self.w)


class WithHelper(Own):
    """Its helper has no Parameters: it is one layer."""

    def __init__(self) -> None:
        super().__init__(w=(8, 6))
        self.act = nn.ReLU()

    def construct(self, x):
        return self.act(ops.matmul(x, self.w))


KNOWN = [
    (Turned(w=(8, 12), b=(12,)), "linear"),
    (RootMeanSquare(w=(8,)), "norm"),
    (Filter(w=(4, 3, 3, 3)), "conv"),
    (Table(w=(40, 8)), "embedding"),
    (Attends(q=(8, 8), v=(8, 8)), "attention"),
    (LowRank(a=(8, 2), b=(2, 8)), "linear"),
    (Gated(g=(8, 16), u=(8, 16), d=(16, 8)), "linear"),
    (Router(w=(8, 4)), "softmax"),
    (Scaled(w=(8,)), "other"),
    (Careful(w=(8, 6)), "other"),
    (WithHelper(), "linear"),
]


@pytest.mark.parametrize(("cell", "category"), KNOWN, ids=lambda v: type(v).__name__)
def test_category_of_what_a_layer_computes(cell, category, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = ms.get_rng_state()
    before = [p.asnumpy().copy() for p in cell.get_parameters()]
    (_, layer, *others) = list_layers(nn.SequentialCell(cell))
    assert (layer.category, layer.unknown, others) == (category, "", [])
    assert layer.computes
    assert all(map(np.array_equal, before, (p.asnumpy() for p in cell.get_parameters())))
    assert np.array_equal(state.asnumpy(), ms.get_rng_state().asnumpy())
    assert not list(tmp_path.iterdir())  # nor does the compiler leave its reports


@pytest.mark.parametrize(
    ("cell", "why"),
    [(Powers(w=(8, 6)), "beside exp, which want float32"), (ByValues(w=(8, 6)), "cannot compile")],
)
def test_what_a_call_does_not_tell_is_said(cell, why):
    layer = list_layers(nn.SequentialCell(cell))[1]
    assert layer.category == "other"
    assert why in layer.unknown


class Net(nn.Cell):
    def __init__(self, own: nn.Cell) -> None:
        super().__init__()
        self.fc, self.own = nn.Dense(8, 8, has_bias=False), own

    def construct(self, x):
        return self.own(self.fc(x))


class Odd(Product):
    def construct(self, x):
        return ops.matmul(ops.exp(x), self.weight)


def told(policy: str, own: type[nn.Cell] = Odd) -> tuple[mp.Amp, list[str]]:
    net = Net(own(8))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), policy)
    return amp, [str(w.message) for w in seen if issubclass(w.category, MpcoreWarning)]


def test_what_is_not_known_stays_float32_and_is_told():
    amp, (line,) = told("mixed_float16")
    assert line.startswith("mixed_float16: 50.0 % of the parameter bytes stay float32")
    assert "Odd (it computes matmul beside exp" in line
    assert amp.plan["own"].compute == "float32"


def test_what_is_known_is_lowered_and_trains():
    amp, lines = told("mixed_float16, loss_scale=none", Product)
    assert lines == []
    assert amp.plan["own"].compute == "float16"
    assert amp.model.own(Tensor(np.ones((2, 8), "f4"))).dtype == ms.float16
    before = amp.weights()
    assert amp.step(lambda x: amp.model(x).astype(ms.float32).mean(), np.ones((2, 8), "f4")).stepped
    assert not np.array_equal(before["own.weight"], amp.weights()["own.weight"])


@pytest.mark.parametrize("policy", ["float32", "mixed_float16; full own"])
def test_nothing_is_told_where_nothing_is_lost(policy):
    assert told(policy)[1] == []


def test_registered_class_is_lowered():
    mp.register_layer(Odd, "linear")
    try:
        amp, lines = told("mixed_float16")
        assert lines == []
        assert amp.plan["own"].rule == "linear: lower"
        out = amp.model.own(Tensor(np.ones((2, 8), "f4")))
        assert out.dtype == ms.float16
    finally:
        mp.register_layer(Odd, None)


class Counting(Product):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.seen = Parameter(Tensor(np.zeros(1, "f4")), name="seen", requires_grad=False)


def test_state_of_a_registered_cell_is_still_a_buffer():
    from mpcore_mindspore.buffers import buffers

    class Counted(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.own = Counting(8)

        def construct(self, x):
            return self.own(x)

    net = Counted()
    before = [id(param) for param in buffers(net)]
    mp.register_layer(Counting, "linear")
    try:
        assert [id(param) for param in buffers(net)] == before
        assert id(net.own.seen) in before
    finally:
        mp.register_layer(Counting, None)
