"""What a forward pass assigns is put back by a skipped step, trainable or not."""

from __future__ import annotations

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

from mpcore_mindspore.assigned import assigned  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

RNG = np.random.default_rng(11)
X = RNG.normal(size=(8, 4)).astype("f4")
Y = RNG.normal(size=(8, 3)).astype("f4")
ONE, INF = np.float32(1), np.float32("inf")
SCALE = "loss_scale=dynamic(init_scale=1024)"


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ms.runtime.launch_blocking()


def zeros(*shape, trains=True):
    return Parameter(Tensor(np.zeros(shape, "f4")), requires_grad=trains)


class SpectralDense(nn.Dense):
    """Spectral norm with state, as it is written in MindSpore: its weight is assigned."""

    def __init__(self, inputs, outputs) -> None:
        super().__init__(inputs, outputs)
        self.u = Parameter(Tensor(np.ones((1, outputs), "f4")), requires_grad=False)

    def construct(self, x):
        weight = self.weight.value()
        v = ops.matmul(self.u.value().astype(weight.dtype), weight)
        v = v / ops.sqrt((v * v).sum() + 1e-6)
        u = ops.matmul(v, weight.T)
        sigma = ops.sqrt((u * u).sum() + 1e-6)
        u = ops.stop_gradient(u / sigma).astype(ms.float32)
        ops.assign(self.u, u)
        sigma = ops.stop_gradient(sigma)
        done = ops.assign(
            self.weight, ops.stop_gradient((weight / sigma).astype(self.weight.dtype))
        )
        return super().construct(ops.depend(x, done))


class RunningMean(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.mean = zeros(4, trains=False)
        self.gain = Parameter(Tensor(np.ones(4, "f4")))

    def construct(self, x):
        mean = self.mean.value() * 0.9 + x.mean(axis=0).astype(ms.float32) * 0.1
        ops.assign(self.mean, ops.stop_gradient(mean))
        return x * self.gain.astype(x.dtype)


mp.register_layer(RunningMean, "other")  # float32 is meant


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.mean = RunningMean()
        self.spectral = SpectralDense(4, 5)
        self.head = nn.Dense(5, 3)

    def construct(self, x):
        return self.head(ops.tanh(self.spectral(self.mean(x))))


def prepared(policy, **options):
    ms.set_seed(2)
    net = Net().set_train()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return net, optimizer, mp.prepare(net, optimizer, policy, **options)


def state(net, optimizer, amp):
    each = {p.name: p for p in (*net.get_parameters(), *optimizer.get_parameters())}
    held = {name: p.value().astype(ms.float32).asnumpy().copy() for name, p in each.items()}
    return held | {f"float32 {name}": value for name, value in amp.weights().items()}


def same(before, after):
    assert before.keys() == after.keys()
    return [name for name in before if not np.array_equal(before[name], after[name])]


def loss_of(net):
    def loss_fn(x, y, boost):
        difference = net(x).astype(ms.float32) - y
        return (difference * difference).mean() * boost.mean()

    return loss_fn


def boosts(*each):
    return np.repeat(np.array(each, "f4"), 8 // len(each))


POLICIES = [
    f"float32, {SCALE}",
    f"mixed_float16, {SCALE}",
    f"mixed_bfloat16, {SCALE}",
    f"model_float16, {SCALE}",
    f"model_bfloat16, master=split, {SCALE}",
    f"model_bfloat16, master=kahan, {SCALE}",
    f"model_bfloat16, master=stochastic, {SCALE}",
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_skipped_step_puts_back_what_the_forward_pass_assigned(policy, micro_batches):
    net, optimizer, amp = prepared(policy)
    loss_fn = loss_of(net)
    call = {"micro_batches": micro_batches}
    before = state(net, optimizer, amp)
    assert amp.step(loss_fn, X, Y, boosts(1, 1), **call).stepped
    moved = state(net, optimizer, amp)
    assert {"mean.mean", "spectral.u", "spectral.weight"} <= set(same(before, moved))
    assert not amp.step(loss_fn, X, Y, boosts(1, INF), **call).stepped
    assert same(moved, state(net, optimizer, amp)) == []


@pytest.mark.parametrize("policy", [POLICIES[2], POLICIES[4]])
def test_in_a_compiled_step_too(policy):
    net, optimizer, amp = prepared(policy)
    cell = amp.train_cell(loss_of(net), micro_batches=2, compiled=True)
    good, bad = (Tensor(boosts(1, each)) for each in (1, INF))
    assert bool(cell(Tensor(X), Tensor(Y), good)[1])
    before = state(net, optimizer, amp)
    assert not bool(cell(Tensor(X), Tensor(Y), bad)[1])
    assert same(before, state(net, optimizer, amp)) == []


@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2]])
def test_a_dropped_micro_batch_leaves_no_trace(policy):
    runs = []
    for parts in ((1, INF), (1,)):
        net, optimizer, amp = prepared(policy, on_bad_micro_batch="drop")
        rows = slice(0, 4 * len(parts))
        boost = np.repeat(np.array(parts, "f4"), 4)
        assert amp.step(loss_of(net), X[rows], Y[rows], boost, micro_batches=len(parts)).stepped
        runs.append(state(net, optimizer, amp))
    assert same(*runs) == []


@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2], POLICIES[3], POLICIES[4]])
def test_a_step_moves_from_what_was_assigned(policy):
    net, _, amp = prepared(policy)
    start = amp.weights()["spectral.weight"]

    def still(x, y, boost):
        return (net(x).astype(ms.float32) * 0).sum() + boost.sum() * 0

    amp.step(still, X, Y, boosts(1))
    # No gradient and no momentum: what is left is what the forward pass has assigned.
    sigma = start / amp.weights()["spectral.weight"]
    assert abs(np.median(sigma) - 1) > 0.02
    np.testing.assert_allclose(sigma, np.median(sigma), rtol=2e-2)


class Found(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = zeros(2), zeros(2), zeros(2)
        self.fc = nn.Dense(2, 2)
        self.put = ops.Assign()


class Direct(Found):
    def construct(self, x):
        self.put(self.a, x)
        self.b = x
        return x


class Aliased(Found):
    def construct(self, x):
        weight = self.fc.weight
        ops.assign_add(weight, x)
        self.c[0] = x
        y = x * 2
        y.add_(1)
        return y


class Helped(Found):
    def construct(self, x):
        keep(self, x)
        self.other(self.b)
        return x

    def other(self, where):
        where.copy_(self.c)


def keep(cell, x):
    ops.assign(cell.a, x)


class Looped(Found):
    def construct(self, x):
        for param in (self.a, self.b):
            ops.assign(param, x)
        return x


class Reading(Found):
    def construct(self, x):
        return self.fc(x) + self.a * self.b

    def load(self, x):
        ops.assign(self.a, x)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Direct, "a b"),
        (Aliased, "c fc.weight"),
        (Helped, "a b"),
        (Looped, "a b c fc.bias fc.weight"),  # which they are is not known: all
        (Reading, ""),
    ],
)
def test_assignments_are_found_in_the_source(kind, names):
    assert sorted(param.name for param in assigned(kind())) == names.split()
