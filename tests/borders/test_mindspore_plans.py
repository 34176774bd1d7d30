"""Plans of MindSpore's own levels beside what MindSpore itself runs."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import Tensor, nn  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

X = Tensor(np.random.default_rng(3).normal(size=(2, 3, 8, 8)).astype("f4"))


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # O1 writes rewritten_network/ into the working directory
    ms.runtime.launch_blocking()


class MyDense(nn.Dense):
    """As somebody writes it who needs a hook of his own."""


class Biased(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, has_bias=True)
        self.bare = nn.Conv2d(4, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.flat = nn.Flatten()
        self.fc = nn.Dense(256, 6)
        self.head = nn.Dense(6, 6, has_bias=False)
        self.norm = nn.LayerNorm((6,))

    def construct(self, x):
        x = self.flat(self.bn(self.bare(self.conv(x))))
        return self.norm(self.head(self.fc(x)))


class Dense(nn.Cell):
    def __init__(self, kind) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.fc = kind(192, 6)

    def construct(self, x):
        return self.fc(self.flat(x))


def handed_on(net, run):
    seen = {}
    hooks = [
        cell.register_forward_hook(lambda _c, _i, out, path=path: seen.update({path: out.dtype}))
        for path, cell in net.cells_and_names()
        if path
    ]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def prepared(net, policy):
    return mp.prepare(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), policy)


def test_auto_is_planned_as_mindspore_runs_it():
    net = Biased()
    native = ms.amp.auto_mixed_precision(net, "auto")
    theirs = handed_on(net, lambda: native(X))
    net = Biased()
    amp = prepared(net, "mindspore:auto")
    ours = handed_on(net, lambda: net(X))
    assert ours == theirs
    assert theirs["conv"] == theirs["fc"] == ms.float32
    assert theirs["bare"] == theirs["head"] == ms.float16
    seen = mp.observe(amp, X)
    assert not [fault for row in seen.layers for fault in row.faults], seen
    planned = {row.path: row.output for row in seen.layers if row.path in theirs}
    assert planned == {path: str(dtype).lower() for path, dtype in theirs.items()}


def test_the_portable_list_says_what_a_bias_makes_of_its_layer():
    net = Biased()
    amp = prepared(net, "portable_float16")
    ours = handed_on(net, lambda: net(X))
    for path in ("conv", "bare", "fc", "head"):
        assert amp.plan[path].output == str(ours[path]).lower()


@pytest.mark.parametrize("kind", [nn.Dense, MyDense])
def test_o1_runs_its_plan_and_parts_from_the_native_for_a_subclass_alone(kind):
    ms.set_seed(1)
    net = Dense(kind)
    weights = [Tensor(p.asnumpy()) for p in net.get_parameters()]
    float32 = net(X).asnumpy()
    native = ms.amp.auto_mixed_precision(net, "O1")(X).asnumpy()
    net = Dense(kind)
    for param, value in zip(net.get_parameters(), weights, strict=True):
        param.set_data(value)
    amp = prepared(net, "mindspore:O1")
    assert (amp.plan["fc"].compute, amp.plan["fc"].output) == ("float16", "float32")
    with amp.autocast():
        ours = net(X).asnumpy()
    assert not np.array_equal(ours, float32)  # lowered, as the plan says
    assert np.array_equal(native, float32) == (kind is MyDense)
    assert np.array_equal(native, ours) == (kind is nn.Dense)
    if kind is nn.Dense:
        return
    amp.release()
    amp = prepared(net, mp.Policy.named("mindspore:O1").full(layer="MyDense"))
    with amp.autocast():
        np.testing.assert_array_equal(net(X).asnumpy(), native)
