"""Master weights in MindSpore: every scheme against the core's arithmetic, bit for bit."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest

import mpcore as mp
from mpcore.numerics import master_weights as arithmetic
from mpcore.numerics.dtypes import round_to

ms = pytest.importorskip("mindspore", reason="mindspore is not installed")
import zoo  # noqa: E402
from mindspore import Tensor, nn, ops  # noqa: E402
from mindspore.experimental import optim as experimental  # noqa: E402
from zoo_mindspore import ZOO  # noqa: E402

from mpcore_mindspore import master_weights  # noqa: E402
from mpcore_mindspore import rounding as rounding_bits  # noqa: E402

pytestmark = pytest.mark.backend("mindspore")
ms.runtime.launch_blocking()  # ten times faster on two cores

SCHEMES = (
    "none",
    "copy:nearest",
    "copy:away",
    "copy:truncate",
    "split:nearest",
    "split:away",
    "split:truncate",
    "kahan",
    "stochastic:7",
)
COMPILED = ("split:nearest", "kahan", "stochastic:7")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes rank_0/ into the working directory


def policy_of(master, state="float32", scale="none"):
    policy = mp.Policy.parse(f"model_bfloat16, master={master}, optimizer_state={state}")
    return policy.with_loss_scale(scale)


def compiled(function):
    def run(*args):
        return function(*args)

    return ms.jit(run, fullgraph=True)


def patterns():
    """Return float32 patterns: all signs and exponents, ties, the edges, NaNs."""
    drawn = RNG.integers(0, 2**32, 9000, dtype=np.uint32)
    drawn[:2000] = (drawn[:2000] & 0xFFFF0000) | 0x8000
    edges = [0, 1, 0x7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF]
    both = np.array([*edges, *(edge | 0x80000000 for edge in edges)], np.uint32)
    return np.concatenate([drawn, both]).reshape(18, -1)


SHAPE = patterns().shape
SIZE = int(np.prod(SHAPE))


def all_bits(pattern, step):
    pattern = rounding_bits.canonical(pattern)
    found = [pattern]
    for rounding in ("nearest", "away", "truncate"):
        high, low = rounding_bits.rounded(pattern, rounding), rounding_bits.low_bits(pattern)
        back = rounding_bits.joined(high, low, rounding)
        if rounding == "nearest":
            words = rounding_bits.pack(rounding_bits.ties(pattern))
            back = back + rounding_bits.unpack(words, SHAPE, SIZE) * 65536
        found += [high, low, back]
    chance = rounding_bits.noise(rounding_bits.noise_key(-2, step, 3), SHAPE, SIZE, 64)
    return (*found, chance, rounding_bits.rounded_stochastic(pattern, chance))


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_bits_are_those_of_the_core(how):
    drawn = patterns()
    values = drawn.view(np.float32)
    run = compiled(all_bits) if how == "compiled" else all_bits
    canonical, *found = [t.asnumpy() for t in run(Tensor(drawn.view("i4")), Tensor([5], ms.int32))]
    for place, rounding in enumerate(("nearest", "away", "truncate")):
        high, low, back = found[3 * place : 3 * place + 3]
        expected = arithmetic.split(values, rounding)
        np.testing.assert_array_equal((high.view("u4") >> 16).astype("u2"), expected[0])
        np.testing.assert_array_equal(low.view("u2"), expected[1].view("u2"))
        np.testing.assert_array_equal(back, canonical)
        np.testing.assert_array_equal(
            back.view("u4"),
            arithmetic.join(expected[0], expected[1], rounding, expected[2]).view("u4"),
        )
    chance, high = found[-2:]
    noise = arithmetic.noise(2**32 - 2, 5, 3, SIZE)
    np.testing.assert_array_equal(chance.reshape(-1), noise)
    expected = arithmetic.round_stochastic(values, noise)
    np.testing.assert_array_equal((high.view("u4") >> 16).astype("u2"), expected)


# One step after the other, against the arithmetic


class Plain(nn.Cell):
    """Gradients that do not depend on the weights: exact in every format."""

    def __init__(self):
        super().__init__()
        ms.set_seed(0)
        self.fc = nn.Dense(5, 33, weight_init="normal", bias_init="normal")
        self.still = nn.Dense(33, 2)
        for param in self.still.get_parameters():
            param.requires_grad = False

    def construct(self, x):
        return self.still(x)


X, C = (RNG.integers(-3, 4, shape).astype("f4") for shape in ((4, 5), (4, 33)))
RATE = 2.0**-10  # its products are exact


def product(net):
    def loss(x, c):
        return (net.fc(x) * c).sum()

    return loss


def stepper(amp, loss, how):
    if how == "eager":
        return lambda *batch: amp.step(loss, *batch)
    cell = amp.train_cell(loss, compiled=how == "compiled")
    run = compiled(cell) if how == "jit" else cell
    return lambda *batch: amp.result(run(*batch))


def expected_run(start, ordinal, grad, master, steps):
    """Return (16-bit parameter as float32, truth) after ``steps`` of plain SGD."""
    scheme = mp.MasterWeights.parse(master)
    rounding = "nearest" if scheme.name == "stochastic" else scheme.rounding
    keeps = scheme.name in ("copy", "split")
    low, rest = arithmetic.round_bits(start, rounding), None
    truth = start if keeps else arithmetic.widen(low)
    if scheme.name == "kahan":
        truth = arithmetic.restore(*arithmetic.compensate(start))
    for step in range(steps):
        truth = (truth - RATE * grad).astype(np.float32)
        if scheme.name == "stochastic":
            noise = arithmetic.noise(scheme.seed, step, ordinal, truth.size)
            low = arithmetic.round_stochastic(truth, noise)
        else:
            low = arithmetic.round_bits(truth, rounding)
        if scheme.name == "kahan":
            low, rest = arithmetic.compensate(truth)
            truth = arithmetic.restore(low, rest)
        elif not keeps:
            truth = arithmetic.widen(low)
    return arithmetic.widen(low), truth


@pytest.mark.parametrize(
    ("how", "master"),
    [*(("eager", master) for master in SCHEMES), *(("jit", master) for master in COMPILED)],
)
def test_each_scheme_stores_what_the_arithmetic_says(master, how):
    net = Plain()
    start = {name: p.asnumpy().copy() for name, p in net.parameters_dict().items()}
    amp = mp.prepare(net, nn.SGD(net.trainable_params(), RATE), policy_of(master))
    run = stepper(amp, product(net), how)
    for _ in range(3):
        assert run(Tensor(X), Tensor(C)).stepped
    truth = amp.weights()
    lows = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
    for ordinal, (name, grad) in enumerate((("fc.weight", C.T @ X), ("fc.bias", C.sum(0)))):
        low, exact = expected_run(start[name], ordinal, grad, master, 3)
        np.testing.assert_array_equal(lows[name], low)
        np.testing.assert_array_equal(truth[name], exact)
    for name in ("still.weight", "still.bias"):
        low, exact = expected_run(start[name], 0, 0, master, 0)
        np.testing.assert_array_equal(lows[name], low)
        np.testing.assert_array_equal(truth[name], exact)
    if master.startswith(("copy", "split")):
        assert (truth["fc.weight"] != lows["fc.weight"]).any()
    if how == "jit":
        assert amp.masters["fc.weight"].asnumpy().shape == truth["fc.weight"].shape


# Split is copy with the same rounding


def three_optimizers(model):
    """Return one optimizer for each third of the parameters."""
    params = model.trainable_params()
    third = -(-len(params) // 3)
    parts = [params[start : start + third] for start in range(0, len(params), third)]
    return {
        "momentum": nn.Momentum(parts[0], 0.02, 0.9),
        "adam": nn.Adam(parts[1], 1e-3),
        "adamw": nn.AdamWeightDecay(parts[2], 1e-3, weight_decay=0.01),
    }


@pytest.mark.parametrize(
    ("name", "rounding", "steps"),
    [
        ("cnn", "away", 12),
        ("gpt", "nearest", 6),
        pytest.param("cnn", "away", 200, marks=pytest.mark.nightly),
        pytest.param("gpt", "nearest", 200, marks=pytest.mark.nightly),
    ],
)
def test_split_is_copy_bit_for_bit(name, rounding, steps):
    """Each step rounds thousands of weights up, down and over a carry, so 6 meet what 200 meet."""
    entry, runs = ZOO[name], []
    batch = entry.tensors(entry.batch(zoo.generator(name)))
    for scheme in ("copy", "split"):
        ms.set_seed(0)
        model = entry.build()
        for _, cell in model.cells_and_names():
            if isinstance(cell, nn.Dropout):
                cell.set_train(False)  # its masks differ from one compiled step to another
        optimizers = three_optimizers(model)
        before = [p.asnumpy().copy() for p in model.trainable_params()]
        amp = mp.prepare(model, optimizers, policy_of(f"{scheme}:{rounding}"))
        cell = amp.train_cell(entry.loss(model), compiled=True)
        ms.set_seed(1)
        losses = [amp.result(cell(*batch)).loss for _ in range(steps)]
        assert losses[-1] < losses[0]
        runs.append((losses, amp.weights(), {p.name: p.asnumpy() for p in model.get_parameters()}))
        amp.release()
        after = [p.asnumpy() for p in model.trainable_params()]
        assert not any(np.array_equal(*pair) for pair in zip(before, after, strict=True))
        truth = [runs[-1][1][p.name] for p in model.trainable_params()]
        for mine, other in zip(after, truth, strict=True):
            np.testing.assert_array_equal(mine, other)
    assert runs[0][0] == runs[1][0]
    for one, other in zip(runs[0][1:], runs[1][1:], strict=True):
        for key, value in one.items():
            np.testing.assert_array_equal(value, other[key])


def small(master="split", state="float32", scale="none", make=nn.Adam, rate=0.01, **options):
    ms.set_seed(0)
    net = nn.SequentialCell(OrderedDict(fc1=nn.Dense(5, 8), act=nn.Tanh())).set_train()
    optimizer = make(net.trainable_params(), rate)
    return net, mp.prepare(net, optimizer, policy_of(master, state, scale), **options)


def squared(net):
    def loss(x, boost):
        return (net(x) ** 2).mean() * boost

    return loss


ONE, BAD = Tensor(1.0, ms.float32), Tensor(float("inf"), ms.float32)


def test_optimizers_of_the_experimental_kind_split_too():
    runs = []
    for master in ("copy:away", "split:away"):
        net, amp = small(master, make=experimental.AdamW)
        loss = squared(net)
        losses = [amp.step(loss, Tensor(X), ONE).loss for _ in range(4)]
        runs.append((losses, amp.weights()))
    assert runs[0][0] == runs[1][0]
    for key, value in runs[0][1].items():
        np.testing.assert_array_equal(value, runs[1][1][key])


# Moments


def state_of(optimizer):
    return {p.name: p.asnumpy().copy() for p in optimizer.get_parameters()}


def test_moments_are_rounded_to_nearest_between_steps():
    net, amp = small("split", "bfloat16")
    moments = amp.optimizer.moment1[0], amp.optimizer.moment2[0]
    amp.step(squared(net), Tensor(X), ONE)
    assert amp.array_bytes()["optimizer"] < 2 * 2 * 48 + 50
    found = [m.asnumpy().copy() for m in moments]
    exact, plain = small("split")
    plain.step(squared(exact), Tensor(X), ONE)
    for value, whole in zip(
        found, (plain.optimizer.moment1[0], plain.optimizer.moment2[0]), strict=True
    ):
        assert value.any()
        np.testing.assert_array_equal(value, round_to(whole.asnumpy(), "bfloat16"))
        assert (value != whole.asnumpy()).any()


# A skipped step


@pytest.mark.parametrize(
    ("how", "master"),
    [("eager", "split:nearest"), ("compiled", "split:nearest"), ("compiled", "stochastic:3")],
)
def test_skipped_step_leaves_every_part(master, how):
    net, amp = small(master, "bfloat16", "dynamic")
    run = stepper(amp, squared(net), how)
    assert run(Tensor(X), ONE).stepped
    parts = lambda: [  # noqa: E731
        *(p.asnumpy().copy() for p in net.get_parameters()),
        *amp.weights().values(),
        *state_of(amp.optimizer).values(),
        np.array(amp.optimizer_steps),
    ]
    before = parts()
    assert not run(Tensor(X), BAD).stepped
    for mine, other in zip(parts(), before, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert run(Tensor(X), ONE).stepped
    assert amp.optimizer_steps == (2 if master.startswith("stochastic") else 0)


# In and out


@pytest.mark.parametrize("master", ["kahan", "stochastic:3"])
def test_resumed_run_is_the_uninterrupted_one(master, tmp_path):
    net, amp = small(master, "bfloat16")
    loss = squared(net)
    for _ in range(3):
        amp.step(loss, Tensor(X), ONE)
    amp.save(tmp_path / "state.json")
    weights = amp.weights()
    ms.save_checkpoint(amp.optimizer, str(tmp_path / "optimizer.ckpt"))
    losses = [amp.step(loss, Tensor(X), ONE).loss for _ in range(3)]

    other, resumed = small(master, "bfloat16")
    resumed.load_weights(weights)
    file = ms.load_checkpoint(str(tmp_path / "optimizer.ckpt"))
    assert any(value.asnumpy().any() for key, value in file.items() if "moment1" in key)
    ms.load_param_into_net(resumed.optimizer, file)
    resumed.load(tmp_path / "state.json")
    for key, value in resumed.weights().items():
        np.testing.assert_array_equal(value, weights[key])
    loss = squared(other)
    assert [resumed.step(loss, Tensor(X), ONE).loss for _ in range(3)] == losses
    for key, value in resumed.weights().items():
        np.testing.assert_array_equal(value, amp.weights()[key])


@pytest.mark.parametrize("master", ["copy", "split"])
def test_float32_checkpoint_keeps_its_truth(master):
    net, amp = small(master)
    loss = squared(net)
    amp.step(loss, Tensor(X), ONE)
    source = {n: RNG.normal(size=p.shape).astype("f4") for n, p in net.parameters_dict().items()}
    file = {name: ms.Parameter(Tensor(value), name=name) for name, value in source.items()}
    assert ms.load_param_into_net(net, file) == ([], [])
    for name, value in source.items():
        np.testing.assert_array_equal(amp.weights()[name], value)
    rounding = amp.policy.scheme.rounding
    for param in net.get_parameters():
        low = arithmetic.widen(arithmetic.round_bits(source[param.name], rounding))
        np.testing.assert_array_equal(param.asnumpy(), low)
    # What the network itself holds, loaded back, is no new truth.
    ms.load_param_into_net(net, {p.name: ms.Parameter(p.asnumpy()) for p in net.get_parameters()})
    for name, value in source.items():
        np.testing.assert_array_equal(amp.weights()[name], value)
    assert amp.step(loss, Tensor(X), ONE).stepped
    assert all((amp.weights()[name] != value).any() for name, value in source.items())


def test_published_masters_are_stored():
    net, amp = small("split", "bfloat16")
    masters = amp.masters
    ops.assign(masters["fc1.bias"], Tensor(np.full(8, 1.0 + 2.0**-20, "f4")))
    ops.assign(amp.optimizer.moment1[1], Tensor(np.full(8, 3.0, "f4")))
    amp.sync_masters()
    np.testing.assert_array_equal(amp.weights()["fc1.bias"], np.float32(1.0 + 2.0**-20))
    np.testing.assert_array_equal(net.fc1.bias.asnumpy(), np.float32(1.0))
    amp.step(squared(net), Tensor(X), ONE)
    assert (amp.optimizer.moment1[1].asnumpy() > 2).all()


def test_release_gives_back_the_truth_of_all():
    net = Plain()
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    truth = {p.name: p for p in net.get_parameters()}
    start = net.still.weight.asnumpy().copy()
    amp = mp.prepare(net, optimizer, policy_of("split:nearest", "bfloat16"))
    amp.step(product(net), Tensor(X), Tensor(C))
    weights = amp.weights()
    amp.release()
    assert {p.name: p for p in net.get_parameters()} == truth
    for name, value in weights.items():
        np.testing.assert_array_equal(truth[name].asnumpy(), value)
    np.testing.assert_array_equal(net.still.weight.asnumpy(), start)
    _, grads = ms.value_and_grad(product(net), None, optimizer.parameters)(Tensor(X), Tensor(C))
    optimizer(grads)
    assert (net.fc.weight.asnumpy() != weights["fc.weight"]).any()


# Memory


@pytest.mark.parametrize(
    ("master", "state", "kept", "moments"),
    [
        ("copy", "float32", 4, 8),
        ("split", "float32", 2, 8),
        ("kahan", "bfloat16", 2, 4),
        ("stochastic", "bfloat16", 0, 4),
    ],
)
def test_memory_is_given_back_between_steps(master, state, kept, moments):
    net = nn.SequentialCell(nn.Dense(64, 64, has_bias=False))
    amp = mp.prepare(net, nn.Adam(net.trainable_params(), 0.01), policy_of(master, state))
    loss, x = squared(net), Tensor(np.ones((2, 64), "f4"))
    count = 64 * 64
    assert amp.array_bytes()["gradients"] == 0
    for step in (lambda: amp.step(loss, x, ONE), None):
        if step is None:
            cell = amp.train_cell(loss, compiled=True)
            step = lambda: cell(x, ONE)  # noqa: B023, E731
        step()
        found = amp.array_bytes()
        # On CPU bfloat16 is simulated: the network's own Parameters are float32.
        assert found["parameters"] == found["gradients"] == 4 * count
        assert found["masters"] == kept * count
        assert abs(found["optimizer"] - moments * count) <= 20  # the scalars of Adam
    amp.train_cell(loss)  # may be in a graph of the user's own: its memory must stay
    amp.step(loss, x, ONE)
    found = amp.array_bytes()
    assert found["masters"] == (kept if master == "copy" else kept + 4) * count
    assert amp.step(loss, x, ONE).stepped


# Lost updates


def test_stall_is_reported_within_twenty_steps():
    net, amp = small("none", make=nn.SGD, rate=1e-5)
    loss = squared(net)
    cell = amp.train_cell(loss, compiled=True)
    run = lambda: [amp.result(cell(Tensor(X), ONE)) for _ in range(20)]  # noqa: E731
    with pytest.warns(mp.MpcoreWarning, match=r"most updates of .* were lost to roun") as told:
        result = run()[-1]
    assert told[0].filename == __file__
    assert set(result.lost_updates) == {"fc1"}
    assert min(result.lost_updates.values()) > 0.9
    assert amp.step(loss, Tensor(X), ONE).lost_updates == result.lost_updates


@pytest.mark.parametrize("master", ["split", "kahan", "stochastic"])
def test_healthy_runs_are_silent(master):
    net, amp = small(master, make=nn.SGD, rate=1e-3, count_lost_updates="on")
    cell = amp.train_cell(squared(net), compiled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mp.MpcoreWarning)
        shares = [amp.result(cell(Tensor(X), ONE)).lost_updates for _ in range(21)]
    lost = np.mean([list(share.values()) for share in shares])
    assert lost > 0.5 if master == "stochastic" else lost < 0.1
    bad = squared(net)
    skipped = amp.step(bad, Tensor(X), BAD)
    assert skipped.lost_updates == {}


def test_kahan_and_stochastic_follow_float32_where_none_stands_still():
    ends, x = {}, Tensor(np.abs(X))
    for master in ("float32", "kahan", "stochastic:1", "none"):
        net = nn.SequentialCell(nn.Dense(5, 8, weight_init="ones", has_bias=False))
        text = master if master == "float32" else policy_of(master)
        amp = mp.prepare(net, nn.SGD(net.trainable_params(), 2e-4), text, count_lost_updates="off")
        cell = amp.train_cell(squared(net), compiled=True)
        losses = [float(cell(x, ONE)[0]) for _ in range(200)]
        ends[master] = losses[-1], losses[0]
    assert ends["none"][0] == ends["none"][1]
    moved = ends["none"][0] - ends["float32"][0]
    assert moved > 0.1 * ends["none"][0]
    assert abs(ends["kahan"][0] - ends["float32"][0]) < 0.02 * moved
    assert abs(ends["stochastic:1"][0] - ends["float32"][0]) < 0.2 * moved


# Refusals, and what is none


def test_float16_parameters_are_rounded_to_nearest_and_train_without_masters():
    net = nn.SequentialCell(OrderedDict(fc1=nn.Dense(5, 8), fc2=nn.Dense(8, 2)))
    policy = mp.Policy.parse("model_float16, master=none").with_loss_scale("none")
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.01)
    amp = mp.prepare(net, optimizer, policy)
    losses = [amp.step(squared(net), Tensor(X), ONE).loss for _ in range(4)]
    assert net.fc1.weight.dtype == ms.float16
    assert losses[-1] < losses[0]
    assert amp.optimizer.moments1[0].dtype == ms.float32


def test_bits_of_bfloat16_parameters_are_their_own():
    """What a device with bfloat16 arithmetic stores: the storage alone runs here."""
    values = RNG.normal(size=(3, 7)).astype("f4")
    low = ms.Parameter(Tensor(values).astype(ms.bfloat16), name="low")
    memory = master_weights.Memory(low, "low")

    @ms.jit
    def write(pattern, done):
        found = memory.bits(done)
        return found, memory.number(pattern, ops.depend(done, found)).astype(ms.float32)

    new = RNG.normal(size=(3, 7)).astype("f4")
    truncated = (new.view("i4") >> 16) << 16
    found, number = write(Tensor(truncated), ONE)
    rounded = arithmetic.round_bits(values).astype("u4") << 16
    np.testing.assert_array_equal(found.asnumpy().view("u4"), rounded)
    np.testing.assert_array_equal(number.asnumpy().view("i4"), truncated)


class Around(nn.Cell):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def construct(self, *batch):
        return self.cell(*batch)


@pytest.mark.parametrize(
    "policy", ["master=split", "master=stochastic", "optimizer_state=bfloat16"]
)
def test_what_shares_memory_is_refused_in_graph_mode(policy):
    ms.set_seed(0)
    net = nn.SequentialCell(nn.Dense(4, 4))
    amp = mp.prepare(net, nn.Adam(net.trainable_params(), 0.01), f"model_bfloat16, {policy}")

    def loss_fn(x):
        return net(x).astype(ms.float32).sum()

    before, cell = amp.weights(), amp.train_cell(loss_fn)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        for step in (partial(amp.step, loss_fn), cell, Around(cell)):
            with pytest.raises(mp.BackendError, match=r"PYNATIVE_MODE, got GRAPH_MODE.*ms\.jit"):
                step(ops.ones((2, 4)))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    after = amp.weights()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert amp.step(loss_fn, ops.ones((2, 4))).stepped
    assert not any(np.array_equal(before[name], value) for name, value in amp.weights().items())
