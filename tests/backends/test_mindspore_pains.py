"""What users of MindSpore's own mixed precision run into, failing natively beside ours."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from harness import covering

import mpcore as mp

ms = pytest.importorskip("mindspore")
from mindspore import Parameter, ParameterTuple, Tensor, amp, nn, ops  # noqa: E402
from mindspore.experimental import optim as experimental  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")

RNG = np.random.default_rng(7)
X = RNG.normal(size=(32, 8)).astype("f4")
Y = RNG.integers(0, 4, 32).astype("i4")
INF = float("inf")
FLOAT32 = mp.Policy.parse("float32, loss_scale=static(1024)")


@pytest.fixture(autouse=True)
def _scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


@pytest.fixture(scope="module", autouse=True)
def _quick():
    ms.runtime.launch_blocking()


def network():
    ms.set_seed(3)
    layers = OrderedDict(
        fc1=nn.Dense(8, 16), bn=nn.BatchNorm1d(16), act=nn.ReLU(), fc2=nn.Dense(16, 4)
    )
    return nn.SequentialCell(layers).set_train()


def momentum(net, rate=0.1):
    return nn.Momentum(net.trainable_params(), rate, 0.9)


def loss_of(net):
    def loss_fn(x, y, boost):
        return ops.cross_entropy(net(x), y) * boost

    return loss_fn


def batch(factor=1.0, boost=1.0):
    return Tensor(X * np.float32(factor)), Tensor(Y), Tensor(boost, ms.float32)


def values(*cells):
    held = {id(p): p for cell in cells for p in cell.get_parameters()}
    return {p.name: p.value().astype(ms.float32).asnumpy().copy() for p in held.values()}


def same(before, after):
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def jitted(cell):
    def run(*args):
        return cell(*args)

    return ms.jit(run, fullgraph=True)


def native_grads(net, scale, *, boost=1.0):
    """Return the gradients of a native float16 loop, unscaled by mindspore.amp."""
    net.fc1.to_float(ms.float16)
    net.bn.to_float(ms.float32)
    net.fc2.to_float(ms.float16)
    scaler = amp.DynamicLossScaler(scale, 2, 2000)

    def forward(x, y):
        return scaler.scale(ops.cross_entropy(net(x).astype(ms.float32), y) * boost)

    params = ParameterTuple(net.trainable_params())
    _, grads = ms.value_and_grad(forward, None, params)(Tensor(X), Tensor(Y))
    return scaler.unscale(grads)


# --- what a skipped step tells, and what it leaves behind


def test_skips_are_seen_and_counted():
    """F6, P2: the native scaler holds a scale and a count of good steps, nothing of skips."""
    scaler = amp.DynamicLossScaler(2.0**10, 2, 100)
    for finite in (False, True, False):
        scaler.adjust(Tensor(finite))
    held = {name: float(p.asnumpy()) for name, p in vars(scaler).items() if hasattr(p, "asnumpy")}
    assert held == {"scale_value": 256.0, "counter": 0.0}
    assert 2 not in held.values()  # two steps were skipped, nobody knows

    net = network()
    bound = mp.prepare(net, momentum(net), FLOAT32)
    faults = [0, 1, 0, 0, 1, 1, 0]
    results = [bound.step(loss_of(net), *batch(boost=INF if bad else 1.0)) for bad in faults]
    assert [not result.stepped for result in results] == [bool(bad) for bad in faults]
    assert bound.state.skipped_steps == sum(faults)


def test_default_never_updates_on_overflow():
    """P18: a native loop that updates anyway loses its weights."""
    net = network()
    optimizer = momentum(net)
    optimizer(native_grads(net, 2.0**24))
    assert not all(np.isfinite(value).all() for value in values(net).values())

    net = network()
    optimizer = momentum(net)
    rule = mp.LossScale(init_scale=2.0**24)
    bound = mp.prepare(net, optimizer, mp.Policy.named("mixed_float16").with_loss_scale(rule))
    before = values(net, optimizer)
    assert not bound.step(loss_of(net), *batch()).stepped
    same(before, values(net, optimizer))


class Average(nn.Cell):
    """An average of the weights; ``call()`` renews it."""

    def __init__(self, net) -> None:
        super().__init__(auto_prefix=False)
        self.pairs = [
            (Parameter(p.value().copy(), name=f"average.{p.name}", requires_grad=False), p)
            for p in net.trainable_params()
        ]

    def construct(self):
        for average, param in self.pairs:
            ops.assign(average, average * 0.5 + param * 0.5)
        return self.pairs[0][0].value()

    def read(self):
        return {average.name: average.asnumpy().copy() for average, _ in self.pairs}


def averaging(net):
    """Return (a function that renews the average, the Cell that holds it)."""
    average = Average(net)
    pairs = average.pairs

    def renew():
        for mean, param in pairs:
            ops.assign(mean, mean * 0.5 + param * 0.5)

    return renew, average


@pytest.mark.parametrize("kind", ["function", "cell"])
@pytest.mark.parametrize("wrap", [lambda cell: cell, jitted], ids=["eager", "jit"])
def test_average_of_the_weights_equals_that_of_a_clean_run(kind, wrap):
    """P3: a loop that averages after every batch counts the weights of skipped ones twice."""
    runs = {}
    for name, faults in (("ours", [0, 1, 0, 1]), ("clean", [0, 0]), ("native", [0, 1, 0, 1])):
        net = network()
        renew, average = averaging(net)
        follow = [renew if kind == "function" else average] if name != "native" else []
        bound = mp.prepare(net, momentum(net), FLOAT32, after_step=follow)
        run = wrap(bound.train_cell(loss_of(net)))
        for bad in faults:
            run(*batch(boost=INF if bad else 1.0))
            if name == "native":
                renew()
        runs[name] = average.read()
    same(runs["clean"], runs["ours"])
    assert any((runs["clean"][name] != runs["native"][name]).any() for name in runs["clean"])


# --- schedules


def rates(kind):
    if kind == "list":
        return nn.exponential_decay_lr(0.1, 0.9, 100, 1, 1)
    return nn.ExponentialDecayLR(0.1, 0.9, 1)


@pytest.mark.parametrize("kind", ["list", "schedule"])
def test_dynamic_rate_follows_real_steps(kind):
    """F8, P1: 100 steps, 10 of them skipped."""
    net = network()
    optimizer = momentum(net, rates(kind))
    bound = mp.prepare(net, optimizer, FLOAT32)
    loss_fn = loss_of(net)
    for step in range(100):
        bound.step(loss_fn, *batch(boost=INF if step % 10 == 3 else 1.0))
    assert int(optimizer.global_step.asnumpy()[0]) == 90
    assert bound.state.skipped_steps == 10


@pytest.mark.parametrize("wrap", [lambda cell: cell, jitted], ids=["eager", "jit"])
def test_skipped_steps_count_where_the_rule_says_so(wrap):
    rule = mp.LossScale(init_scale=1024.0, count_skipped_steps=True)
    net = network()
    optimizer = momentum(net, rates("schedule"))
    bound = mp.prepare(net, optimizer, mp.Policy().with_loss_scale(rule))
    run = wrap(bound.train_cell(loss_of(net)))
    for boost in (1.0, INF, INF, 1.0):
        run(*batch(boost=boost))
    assert int(optimizer.global_step.asnumpy()[0]) == 4
    net = network()
    without = experimental.SGD(net.trainable_params(), lr=0.1)
    bound = mp.prepare(net, without, mp.Policy().with_loss_scale(rule))
    assert not bound.step(loss_of(net), *batch(boost=INF)).stepped  # it has no global_step


def test_scheduler_moves_with_real_steps():
    """F8, P1: the native one moves on after a skipped step."""
    reached = {}
    for kind in ("native", "ours"):
        net = network()
        optimizer = experimental.SGD(net.trainable_params(), lr=0.1)
        native = experimental.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        bound = mp.prepare(net, optimizer, FLOAT32)
        scheduler = bound.scheduler(native) if kind == "ours" else native
        cell = bound.train_cell(loss_of(net))
        for boost in (1.0, INF, INF, 1.0):
            bound.result(cell(*batch(boost=boost)))
            scheduler.step()
        reached[kind] = float(optimizer.param_groups[0]["lr"].asnumpy())
    assert reached == {"native": pytest.approx(0.1 / 16), "ours": pytest.approx(0.1 / 4)}


# --- the scale


def test_floor_may_lie_below_one():
    """P5: the native floor is 1, and this loss needs less."""
    boost = 1e8
    assert not amp.all_finite(native_grads(network(), 1.0, boost=boost))
    scaler = amp.DynamicLossScaler(1.0, 2, 100)
    scaler.adjust(Tensor(False))
    assert float(scaler.scale_value.asnumpy()) == 1.0

    rule = mp.LossScale(init_scale=1.0, min_scale=2.0**-20)
    net = network()
    policy = mp.Policy.named("mixed_float16").with_loss_scale(rule)
    bound = mp.prepare(net, momentum(net, 1e-9), policy)
    results = [bound.step(loss_of(net), *batch(boost=boost)) for _ in range(14)]
    assert results[-1].stepped
    assert bound.scale < 2.0**-6


def test_scale_stops_at_its_cap():
    """P6: the native one grows until its unscaling writes zeros into float16 gradients."""
    scaler = amp.DynamicLossScaler(2.0**16, 2, 1)
    for _ in range(200):
        scaler.adjust(Tensor(True))
    assert float(scaler.scale_value.asnumpy()) == 2.0**127
    assert not scaler.unscale((Tensor([1.0], ms.float16),))[0].asnumpy().any()

    rule = mp.LossScale(init_scale=2.0**16, growth_interval=1)
    net = network()
    bound = mp.prepare(net, momentum(net), mp.Policy().with_loss_scale(rule))
    results = [bound.step(loss_of(net), *batch()) for _ in range(12)]
    assert all(result.stepped for result in results)
    assert bound.scale == 2.0**24


def test_bfloat16_needs_no_scale():
    """P15: the native check of bfloat16 gradients does not run on a CPU."""
    with pytest.raises(Exception, match=r"(?i)isfinite|bfloat16|unsupported"):
        amp.all_finite((Tensor([1.0], ms.bfloat16),)).asnumpy()
    net = network()
    bound = mp.prepare(net, momentum(net), "mixed_bfloat16")
    assert bound.step(loss_of(net), *batch()).stepped
    assert bound.scale == 1.0


def test_float16_loss_is_scaled_in_float32():
    native = amp.DynamicLossScaler(2.0**16, 2, 100).scale(Tensor(2.0, ms.float16))
    assert np.isinf(native.asnumpy())
    net = network()
    rule = mp.LossScale(init_scale=2.0**16)
    bound = mp.prepare(net, momentum(net), mp.Policy().with_loss_scale(rule))

    def low_loss(x, y):
        return ops.cross_entropy(net(x), y).astype(ms.float16)

    result = bound.step(low_loss, Tensor(X), Tensor(Y))
    assert np.isfinite(result.loss)
    assert result.scale == 2.0**16
    # Its own gradient is cast to float16 on the way back: 2**16 does not fit, 2**15 does.
    assert not result.stepped
    assert bound.step(low_loss, Tensor(X), Tensor(Y)).stepped


# --- gradients


def test_no_gradients_are_no_error():
    """P10: mindspore.amp cannot judge an empty list."""
    with pytest.raises(ValueError, match="AddN"):
        amp.all_finite(())
    net = network()
    for param in net.get_parameters():
        param.requires_grad = False
    frozen = [net.fc1.weight, net.fc1.bias]
    bound = mp.prepare(net, nn.Momentum(frozen, 0.1, 0.9), FLOAT32)
    before = values(net.fc1)
    result = bound.step(loss_of(net), *batch())
    assert result.stepped
    assert result.grad_norm == 0
    same(before, values(net.fc1))


def test_clip_norm_is_that_of_true_gradients():
    """P12: a native clip of scaled gradients cuts them to a 1024th of what was meant."""
    net = network()
    params = ParameterTuple(net.trainable_params())

    def scaled(x, y, boost):
        return ops.cross_entropy(net(x), y) * boost * 1024

    grads = ms.grad(scaled, None, params)(*batch())
    clipped = [g.asnumpy() / 1024 for g in ops.clip_by_global_norm(grads, 1.0)]
    assert np.sqrt(sum((g**2).sum() for g in clipped)) == pytest.approx(1 / 1024, rel=1e-3)

    norms = {}
    for policy in ("float32", "mixed_float16"):
        net = network()
        bound = mp.prepare(net, momentum(net), mp.Policy.named(policy))
        result = bound.step(loss_of(net), *batch(), clip_norm=1e-3)
        while not result.stepped:
            result = bound.step(loss_of(net), *batch(), clip_norm=1e-3)
        norms[policy] = result.grad_norm
    assert norms["mixed_float16"] == pytest.approx(norms["float32"], rel=2e-3)  # 2 ulp of float16


def test_bad_micro_batch_is_left_out():
    """P14: natively the sum is spoilt."""
    x = X.copy()
    x[0] = np.inf
    net = network()
    params = ParameterTuple(net.trainable_params())
    parts = [(Tensor(x[i : i + 8]), Tensor(Y[i : i + 8]), Tensor(1.0)) for i in range(0, 32, 8)]
    sums = [ms.grad(loss_of(net), None, params)(*part) for part in parts]
    assert not np.isfinite(sum(grads[0].asnumpy() for grads in sums)).all()

    net = network()
    bound = mp.prepare(net, momentum(net), FLOAT32, on_bad_micro_batch="drop")
    result = bound.step(loss_of(net), Tensor(x), Tensor(Y), Tensor(1.0), micro_batches=4)
    assert (result.stepped, result.dropped) == (True, 1)
    assert all(np.isfinite(value).all() for value in values(net).values())


def test_nothing_in_a_step_is_float64():
    """P16."""
    net = network()
    policy = mp.Policy.named("mixed_float16").with_loss_scale(mp.LossScale(init_scale=1024.0))
    bound = mp.prepare(net, momentum(net), policy, on_bad_micro_batch="drop")
    for count in (1, 2):
        cell = bound.train_cell(loss_of(net), 1.0, keep_grads=True, micro_batches=count)
        *numbers, grads = cell(*batch())
        made = [item for item in (*numbers, *grads) if isinstance(item, Tensor)]
        made += [copy for pairs in (cell.buffers, cell.micro_batch_buffers) for _, copy in pairs]
        made += [*cell.get_parameters(), cell.scale, cell.counts]
        assert {str(item.dtype) for item in made} <= {"Float32", "Int32", "Bool"}


# --- gradients of gradients, and two players


class Critic(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(8, 16)
        self.fc2 = nn.Dense(16, 1)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


def penalty_step(policy):
    """Return the true gradients of one critic step of WGAN-GP."""
    ms.set_seed(5)
    critic = Critic().set_train()
    bound = mp.prepare(critic, nn.Momentum(critic.trainable_params(), 0.1, 0.0), policy)

    def loss_fn(real, fake):
        slope = bound.gradient(critic, real * 0.3 + fake * 0.7)
        norm = ops.sqrt((slope * slope).sum(1) + 1e-12)
        return critic(fake).mean() - critic(real).mean() + 10.0 * ((norm - 1.0) ** 2).mean()

    real, fake = Tensor(X * np.float32(0.5)), Tensor(X[::-1].copy())
    result = bound.step(loss_fn, real, fake, keep_grads=True)
    while not result.stepped:  # from 2**16 the scale comes down a few times
        result = bound.step(loss_fn, real, fake, keep_grads=True)
    return {name: grad.asnumpy() for name, grad in result.grads.items()}


def test_gradient_penalty_equals_float32():
    """P13: WGAN-GP in float16, the gradient of the penalty included."""
    exact = penalty_step("float32")
    ours = penalty_step("mixed_float16")
    for name, value in exact.items():
        top = np.abs(value).max()
        # a handful of ulps of float16, relative to the largest element of the tensor
        np.testing.assert_allclose(ours[name], value, atol=5e-3 * max(top, 1e-2), err_msg=name)


def test_native_inner_gradient_vanishes_and_ours_does_not():
    """P13: where the inner gradient is small, float16 loses it without a scale."""
    ms.set_seed(5)
    critic = nn.SequentialCell(OrderedDict(fc1=nn.Dense(8, 4), fc2=nn.Dense(4, 1)))
    bound = mp.prepare(critic, momentum(critic), "mixed_float16")
    bound.state = mp.LossScaleState(2.0**24)

    def small(x):
        return critic(x) * 1e-8

    def total(x):
        return small(x).sum()

    assert not ms.grad(total)(Tensor(X)).asnumpy().any()
    true = (critic.fc2.weight.asnumpy() @ critic.fc1.weight.asnumpy()) * 1e-8
    with bound.autocast():
        ours = bound.gradient(small, Tensor(X))
    assert ours.dtype == ms.float32
    np.testing.assert_allclose(ours.asnumpy(), np.tile(true, (32, 1)), rtol=2e-2)


class Pair(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.SequentialCell(nn.Dense(4, 16), nn.ReLU(), nn.Dense(16, 8))
        self.judge = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))

    def construct(self, noise):
        return self.judge(self.maker(noise))


def duel(pair):
    def judge_loss(noise, real):
        fake = ops.stop_gradient(pair.maker(noise))
        return ops.softplus(pair.judge(fake)).mean() + ops.softplus(-pair.judge(real)).mean()

    def maker_loss(noise, real):
        return ops.softplus(-pair.judge(pair.maker(noise))).mean()

    return {"maker": maker_loss, "judge": judge_loss}


@pytest.mark.parametrize(("way", "make"), covering(["eager", "jit"], ["experimental", nn.Momentum]))
def test_two_players_share_one_scale(way, make):
    """P11: natively two optimizers in one compiled function do not even compile."""
    ms.set_seed(1)
    pair = Pair().set_train()

    def optimizer(cell):
        if make == "experimental":
            return experimental.Adam(cell.trainable_params(), lr=1e-3)
        return make(cell.trainable_params(), 0.05, 0.9)

    both = {"maker": optimizer(pair.maker), "judge": optimizer(pair.judge)}
    losses = duel(pair)
    noise, real = Tensor(RNG.normal(size=(16, 4)).astype("f4")), Tensor(X[:16])
    bound = mp.prepare(pair, both, mp.Policy.named("mixed_float16"))
    wrap = jitted if way == "jit" else lambda cell: cell
    together = wrap(bound.train_cell(losses))
    turns = [wrap(bound.train_cell(losses[name], optimizer=name)) for name in both]
    for _ in range(3):
        for name, turn in zip(both, turns, strict=True):
            before = {key: values(getattr(pair, key)) for key in both}
            result = bound.result(turn(noise, real), optimizer=name)
            after = {key: values(getattr(pair, key)) for key in both}
            for key in both:
                moved = any((after[key][n] != before[key][n]).any() for n in after[key])
                assert moved is (key == name and result.stepped)
        result = bound.result(together(noise, real))
        assert list(result.stepped_by) == ["maker", "judge"]
    assert result.stepped
    before = values(pair, *both.values())
    skipped = bound.result(together(noise, real * np.float32(INF)))
    assert skipped.stepped_by == {"maker": False, "judge": False}
    same(before, values(pair, *both.values()))


def test_two_players_take_turns_in_one_compiled_function():
    ms.set_seed(1)
    pair = Pair().set_train()
    cells = {"maker": pair.maker, "judge": pair.judge}
    both = {name: nn.Momentum(cell.trainable_params(), 0.05, 0.9) for name, cell in cells.items()}
    policy = mp.Policy().with_loss_scale(mp.LossScale(init_scale=1024.0))
    bound = mp.prepare(pair, both, policy)
    losses = duel(pair)
    judge = bound.train_cell(losses["judge"], optimizer="judge")
    maker = bound.train_cell(losses["maker"], optimizer="maker")

    def turns(noise, real):
        first = judge(noise, real)
        return first[:2], maker(noise, real)[:2]

    noise, real = Tensor(RNG.normal(size=(16, 4)).astype("f4")), Tensor(X[:16])
    run = ms.jit(turns, fullgraph=True)
    before = values(pair)
    for _ in range(2):
        assert [bool(stepped) for _, stepped in run(noise, real)] == [True, True]
    after = values(pair)
    assert all((after[name] != before[name]).any() for name in after)
    skipped = run(noise, real * np.float32(INF))
    assert [bool(stepped) for _, stepped in skipped] == [False, True]  # the maker sees no real
    assert (bound.state.good_steps, bound.state.skipped_steps) == (1, 1)
    assert bound.scale == 512.0


def test_native_optimizers_clash_in_one_graph():
    """P11: both hold a Parameter called global_step."""
    pair = Pair()
    params = ParameterTuple(pair.trainable_params())
    maker = nn.Momentum(pair.maker.trainable_params(), 0.1, 0.9)
    judge = nn.Momentum(pair.judge.trainable_params(), 0.1, 0.9)

    def total(noise):
        return pair(noise).sum()

    grad = ms.grad(total, None, params)

    def step(noise):
        grads = grad(noise)
        return maker(grads[:4]), judge(grads[4:])

    with pytest.raises(RuntimeError, match="'global_step' already exists"):
        ms.jit(step, fullgraph=True)(Tensor(np.ones((2, 4), "f4")))
