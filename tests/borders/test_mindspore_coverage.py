"""MindSpore: layers of unknown classes are told, and registered by class."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
pytestmark = pytest.mark.backend("mindspore")

from mindspore import Parameter, Tensor, nn  # noqa: E402

import mpcore as mp  # noqa: E402
from mpcore import MpcoreWarning  # noqa: E402


class Product(nn.Cell):
    def __init__(self, n: int) -> None:
        super().__init__()
        values = np.random.default_rng(0).standard_normal((n, n)).astype("f4")
        self.weight = Parameter(Tensor(values * 0.1), name="weight")

    def construct(self, x):
        return ms.ops.matmul(x, self.weight)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.own = nn.Dense(8, 8, has_bias=False), Product(8)

    def construct(self, x):
        return self.own(self.fc(x))


def told(policy: str) -> tuple[mp.Amp, list[str]]:
    net = Net()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        amp = mp.prepare(net, nn.SGD(net.trainable_params(), 0.1), policy)
    return amp, [str(w.message) for w in seen if issubclass(w.category, MpcoreWarning)]


def test_what_is_not_known_stays_float32_and_is_told():
    amp, (line,) = told("mixed_float16")
    assert line.startswith("mixed_float16: 50.0 % of the parameter bytes stay float32")
    assert "Product (its class is not known)" in line
    assert amp.plan["own"].compute == "float32"


@pytest.mark.parametrize("policy", ["float32", "mixed_float16; full own"])
def test_nothing_is_told_where_nothing_is_lost(policy):
    assert told(policy)[1] == []


def test_registered_class_is_lowered():
    mp.register_layer(Product, "linear")
    try:
        amp, lines = told("mixed_float16")
        assert lines == []
        assert amp.plan["own"].rule == "linear: lower"
        out = amp.model.own(Tensor(np.ones((2, 8), "f4")))
        assert out.dtype == ms.float16
    finally:
        mp.register_layer(Product, None)


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
