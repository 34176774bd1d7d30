"""``prepare(compile=...)``: which steps run compiled, and what a graph would freeze."""

from __future__ import annotations

import itertools
import warnings
from functools import partial

import numpy as np
import pytest

import mpcore as mp

ms = pytest.importorskip("mindspore", reason="mindspore is not installed")
from mindspore import Tensor, nn, ops  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")
ms.runtime.launch_blocking()

RNG = np.random.default_rng(3)
X, Y = (RNG.normal(size=(6, n)).astype("f4") for n in (4, 3))
ELSEWHERE = {"factor": 1.0}
STEADY = 2.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


class Net(nn.Cell):
    """A layer, a buffer that a bad batch would spoil, and attributes of several kinds."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.dense = nn.Dense(4, 3)
        self.drawn = dropout == "drawn"
        self.dropout = None if dropout in (0.0, "drawn") else nn.Dropout(p=dropout)
        self.power, self.calls, self.log = 1.0, 0, []
        self.bias = Tensor(np.zeros(3, "f4"))

    def construct(self, x):
        x = self.dense(self.norm(x)) * self.power + self.bias
        if self.drawn:
            x = ops.dropout(x, 0.5)
        return x if self.dropout is None else self.dropout(x)


def prepared(compile="auto", policy="float32", **options):
    ms.set_seed(0)
    net = Net(options.pop("dropout", 0.0)).set_train()
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    return net, mp.prepare(net, optimizer, policy, compile=compile, **options)


def loss_of(net):
    def loss_fn(x, y):
        return ((net(x) - y) ** 2).mean() * STEADY

    return loss_fn


def said(amp):
    (text,) = amp.compiled_steps.values()
    return text


def state_of(amp):
    optimizer = {p.name: p.asnumpy().copy() for p in amp.optimizer.get_parameters()}
    buffers = {p.name: p.asnumpy().copy() for p in amp.model.get_parameters()}
    return [*amp.weights().items(), *optimizer.items(), *buffers.items()], amp.state


def same(one, two):
    pairs = zip(one[0], two[0], strict=True)
    return one[1] == two[1] and all(a == b and np.array_equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize(
    "policy",
    [
        "mixed_float16, loss_scale=dynamic(init_scale=16, growth_interval=2)",
        pytest.param("model_bfloat16, master=split", marks=pytest.mark.nightly),
    ],
)
def test_compiled_and_eager_steps_are_the_same_run(policy):
    runs = {}
    for choice in ("never", "auto"):
        net, amp = prepared(choice, policy)
        loss_fn, bad = loss_of(net), X.copy()
        bad[0, 0] = np.inf
        trail = []
        for number in range(7):
            result = amp.step(loss_fn, bad if number in (0, 3) else X, Y)
            trail.append((result.stepped, result.scale, result.next_scale))
            if number == 0:  # an overflow hides the numbers: the next batch is tried
                assert amp.compiled_steps == {}
            if number == 1:
                first = state_of(amp)
            if number == 2:
                before = state_of(amp)
            if number == 3:  # buffers and weights are those before the bad batch
                assert all(
                    np.array_equal(a, b)
                    for (_, a), (_, b) in zip(state_of(amp)[0], before[0], strict=True)
                )
        runs[choice] = trail, first, amp.weights(), amp.compiled_steps
    assert runs["never"][3] == {}
    assert next(iter(runs["auto"][3].values())).startswith("compiled: loss ")
    assert runs["auto"][0] == runs["never"][0]
    assert not runs["auto"][0][3][0]
    assert same(runs["auto"][1], runs["never"][1])  # the step that stays of the trial is eager
    for path, values in runs["never"][2].items():
        np.testing.assert_allclose(runs["auto"][2][path], values, atol=0.004)


def test_a_value_that_changes_under_a_graph_sends_the_step_back():
    net, amp = prepared()
    loss_fn = loss_of(net)
    for _ in range(2):
        amp.step(loss_fn, X, Y)
    assert said(amp).startswith("compiled")
    before = amp.weights()
    net.power = 3.0
    with pytest.warns(mp.MpcoreWarning, match=r"runs eagerly, the network\.power has changed"):
        loss = amp.step(loss_fn, X, Y).loss
    other, never = prepared("never")
    never.load_weights(before)
    other.power = 3.0
    assert float(loss) == float(never.step(loss_of(other), X, Y).loss)
    assert said(amp) == "eager: the network.power has changed, which a graph keeps as it was"


@pytest.mark.nightly
def test_shapes_are_compiled_when_they_come_again():
    net, amp = prepared()
    loss_fn = loss_of(net)
    amp.step(loss_fn, X, Y)
    (step,) = amp._compiling._steps.values()
    tried = []
    for rows in (4, 4, 4, 5, 6):
        amp.step(loss_fn, X[:rows], Y[:rows])
        tried.append([(kind.came, kind.good) for kind in step.kinds.values()])
    assert tried[1][1] == (2, False)
    assert tried[2][1] == (3, True)
    assert tried[4] == [(1, True), (3, True), (1, False)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dropout", "what"), [(0.5, "compiled: "), ("drawn", "eager: it draws random numbers")]
)
def test_random_masks_are_those_of_the_eager_run(dropout, what):
    trails = {}
    for choice in ("never", "auto"):
        net, amp = prepared(choice, dropout=dropout)
        loss_fn = loss_of(net)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mp.MpcoreWarning)  # asserted by what was said
            trails[choice] = [float(amp.step(loss_fn, X, Y).loss) for _ in range(4)]
    assert said(amp).startswith(what)
    np.testing.assert_allclose(trails["auto"], trails["never"], rtol=1e-5)


def _by_truth(net, x, y):
    loss = ((net(x) - y) ** 2).mean()
    return loss if float(loss.asnumpy()) > 0 else -loss


def test_what_does_not_compile_runs_eagerly_from_the_same_state():
    net, amp = prepared()
    other, never = prepared("never")

    def loss_fn(x, y):
        return _by_truth(net, x, y)

    def same_loss(x, y):
        return _by_truth(other, x, y)

    with pytest.warns(mp.MpcoreWarning, match="it does not compile: "):
        amp.step(loss_fn, X, Y)
    never.step(same_loss, X, Y)
    for _ in range(2):
        amp.step(loss_fn, X, Y)
        never.step(same_loss, X, Y)
    assert same(state_of(amp), state_of(never))


def test_an_interrupt_in_the_trial_leaves_the_state_before_it(monkeypatch):
    net, amp = prepared()
    loss_fn = loss_of(net)
    before = state_of(amp)
    make = type(amp)._train_cell

    def interrupted(self, *args, **kwargs):
        cell = make(self, *args, **kwargs)
        if kwargs.get("compiled"):
            run = cell.run_once

            def run_once(*batch):
                run(*batch)  # it has moved everything
                raise KeyboardInterrupt

            object.__setattr__(cell, "run_once", run_once)
        return cell

    monkeypatch.setattr(type(amp), "_train_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        amp.step(loss_fn, X, Y)
    assert same(state_of(amp), before)


# What a graph would freeze: (how the loss function is made, what the message says).


def _counter(net):
    def loss_fn(x, y):
        net.calls += 1
        return ((net(x) - y) ** 2).mean()

    return loss_fn


def _nonlocal(net):
    count = 0

    def loss_fn(x, y):
        nonlocal count
        count += 1
        return ((net(x) - y) ** 2).mean() * count

    return loss_fn


def _noise(net):
    def loss_fn(x, y):
        return ((net(x) - y) ** 2).mean() + float(np.random.normal() * 1e-9)  # noqa: NPY002

    return loss_fn


def _iterator(net, numbers):
    def loss_fn(x, y):
        return ((net(x) - y) ** 2).mean() * next(numbers)

    return loss_fn


def _logs(net):
    def loss_fn(x, y):
        net.log.append(1)
        return ((net(x) - y) ** 2).mean()

    return loss_fn


def _large(net):
    table = Tensor(np.ones((300, 300), "f4"))

    def loss_fn(x, y):
        return ((net(x) - y) ** 2).mean() * table.mean()

    return loss_fn


class Annealed:
    """A loss as an object that changes itself."""

    def __init__(self, net):
        self.net, self.temperature = net, 1.0

    def __call__(self, x, y):
        self.cool()
        return ((self.net(x) - y) ** 2).mean() * self.temperature

    def cool(self):
        self.temperature *= 0.9


def _setattr(net):
    def loss_fn(x, y):
        setattr(net, "power", net.power * 0.9)  # noqa: B010
        return ((net(x) - y) ** 2).mean()

    return loss_fn


def _import(net):
    def loss_fn(x, y):
        import random

        return ((net(x) - y) ** 2).mean() + random.random() * 1e-9

    return loss_fn


class Slotted:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = 1.0


def _slotted(net, slotted):
    def loss_fn(x, y):
        return ((net(x) - y) ** 2).mean() * slotted.weight

    return loss_fn


UNWATCHABLE = {
    "setattr": (_setattr, "calls 'setattr'"),
    "an import": (_import, "imports 'random'"),
    "slots": (lambda net: _slotted(net, Slotted()), "is a Slotted"),
    "a counter": (_counter, "writes 'calls' itself"),
    "nonlocal": (_nonlocal, "writes 'count' itself"),
    "numpy's randomness": (_noise, "is the module numpy"),
    "a generator": (lambda net: _iterator(net, (n for n in (1.0, 2.0))), "is a generator"),
    "itertools": (lambda net: _iterator(net, itertools.count(1)), "is a count"),
    "a large table": (_large, "more than 65536 values"),
    "an object": (Annealed, "writes 'temperature' itself"),
    "a method": (lambda net: Annealed(net).__call__, "writes 'temperature' itself"),
    "a partial": (lambda net: partial(_late, Annealed(net)), "writes 'temperature' itself"),
}


def _late(loss, x, y):
    return loss(x, y)


@pytest.mark.parametrize("case", UNWATCHABLE)
def test_what_cannot_be_watched_stays_eager(case):
    make, why = UNWATCHABLE[case]
    net, amp = prepared()
    loss_fn = make(net)
    with pytest.warns(mp.MpcoreWarning, match="runs eagerly"):
        amp.step(loss_fn, X, Y)
    assert why in said(amp)


def test_every_kind_of_frozen_value_is_seen_to_change():
    from mpcore_mindspore.frozen import Frozen

    class Config:
        beta = 1.0

        def __init__(self):
            self.gamma = 2.0

    net, config, weight, table = Net(), Config(), 1.0, Tensor(np.ones(3, "f4"))
    options, parts = {"alpha": 0.5}, [1.0, 2.0]

    def inner(value, sign=1.0):
        return (
            value
            * sign
            * inner.weight
            * weight
            * config.gamma
            * config.beta
            * options["alpha"]
            * parts[0]
        )

    def loss_fn(x, y):
        return inner(((net(x) - y) ** 2).mean()) * ELSEWHERE["factor"] * STEADY * table.mean()

    inner.weight = 1.0

    def set_weight():
        nonlocal weight
        weight = 7.0

    def swap():
        net.dense = nn.Dense(4, 3)

    def replace_table():
        nonlocal table
        table = Tensor(np.zeros(3, "f4"))

    def write_table():
        table[0] = 9.0

    changes = [
        set_weight,
        swap,
        write_table,
        replace_table,
        lambda: setattr(config, "gamma", 3.0),
        lambda: setattr(Config, "beta", 3.0),
        lambda: options.update(alpha=0.25),
        lambda: parts.append(3.0),
        lambda: parts.__setitem__(0, 5.0),
        lambda: ELSEWHERE.update(factor=2.0),
        lambda: globals().update(STEADY=4.0),
        lambda: net.set_train(mode=True),
        lambda: setattr(net, "power", 8.0),
        lambda: setattr(inner, "weight", 2.0),
        lambda: setattr(inner, "__defaults__", (2.0,)),
        lambda: net.bias.__setitem__(0, 2.0),
    ]
    for change in changes:
        frozen = Frozen([loss_fn], net)
        assert frozen.changed() == ""
        change()
        assert frozen.changed(), change


def test_where_nothing_is_tried():
    net, amp = prepared(after_step=[lambda: None])
    with pytest.warns(mp.MpcoreWarning, match="`after_step` is called by Python"):
        amp.step(loss_of(net), X, Y)
    net, amp = prepared()
    with pytest.warns(mp.MpcoreWarning, match="`loss_fn` must be a function"):
        amp.step(lambda x, y: ((net(x) - y) ** 2).mean(), X, Y)
    with pytest.raises(mp.BackendError, match="`compile` must be one of"):
        prepared("sometimes")


@pytest.mark.nightly
def test_always_compiles_unchecked():
    net, amp = prepared("always")
    loss_fn = loss_of(net)
    first = float(amp.step(loss_fn, X, Y).loss)
    net.power = 3.0
    again = float(amp.step(loss_fn, X, Y).loss)
    assert 0 < again < first  # the graph has kept the power that it was compiled with
    assert said(amp).startswith("compiled, as compile='always' asks")


@pytest.mark.nightly
def test_several_optimizers_and_a_dict_of_losses():
    ms.set_seed(0)
    one, two = Net().set_train(), Net().set_train()
    both = nn.CellList([one, two])
    optimizers = {
        name: nn.Momentum(part.trainable_params(), 0.1, 0.9)
        for name, part in {"one": one, "two": two}.items()
    }
    amp = mp.prepare(both, optimizers, "float32", compile="auto")
    losses = {"one": loss_of(one), "two": loss_of(two)}
    trail = [float(amp.step(losses, X, Y).loss) for _ in range(3)]
    assert said(amp).startswith("compiled")
    assert trail[2] < trail[0]
    assert np.isfinite(ops.ReduceSum()(one.dense.weight).asnumpy())
