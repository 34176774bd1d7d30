"""MindSpore: what an example multiplies, in which dtype, told before a network is prepared."""

from __future__ import annotations

import numpy as np
import pytest
from heard import told

ms = pytest.importorskip("mindspore")
pytestmark = pytest.mark.backend("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

import mpcore as mp  # noqa: E402


class Projected(nn.Cell):
    """A dense layer, a product of the network's own by `@`, and another dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(16, 16), nn.Dense(16, 4)
        self.own = Parameter(Tensor(np.eye(16, dtype="f4")), name="own")

    def construct(self, x):
        return self.last(self.first(x).astype(ms.float32) @ self.own)


class Image(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(4, 6, 3, pad_mode="valid")
        self.two = nn.Conv2d(6, 6, 3, pad_mode="valid", group=2)
        self.norm = nn.BatchNorm2d(6)
        self.three = nn.Conv2dTranspose(6, 4, 3, pad_mode="valid")
        self.last = nn.Dense(4, 2)

    def construct(self, x):
        return self.last(ops.mean(self.three(self.norm(self.two(self.one(x)))), (2, 3)))


NETWORKS = {
    "a product of its own": (Projected, (2, 16), 2 * (256 + 256 + 64)),
    "image": (Image, (2, 4, 8, 8), 2 * (36 * 6 * 36 + 16 * 6 * 27 + 16 * 6 * 36 + 8)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "model_bfloat16"])
def test_multiply_adds_are_those_that_one_counts_by_hand(name, policy):
    make, shape, number = NETWORKS[name]
    net, x = make().set_train(), Tensor(np.ones(shape, "f4"))
    before = [p.asnumpy() for p in net.get_parameters()]
    found = mp.explain(net, policy, x)
    assert sum(found.multiply_adds.values()) == number
    assert found.multiply_adds.get("float32", 0) == (512 if make is Projected else 0)
    for value, param in zip(before, net.get_parameters(), strict=True):
        np.testing.assert_array_equal(value, param.asnumpy())
    said = told(lambda: mp.prepare(net, nn.SGD(net.trainable_params()), policy, example=x))
    lines = [str(one.message) for one in said if "`example`" in str(one.message)]
    wide = f"{policy}: 44.4 % of the multiply-adds of `example` are in float32: "
    assert len(lines) == (make is Projected)
    assert all(line.startswith(wide) and line.endswith(" in the model") for line in lines)
