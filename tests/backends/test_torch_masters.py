"""Master weights in torch: every scheme, with torch's own optimizers."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy as np
import pytest

import mpcore as mp
from mpcore.numerics import master_weights as reference
from mpcore.step.stagnation import sample

torch = pytest.importorskip("torch")
import zoo_torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from mpcore_torch import rounding  # noqa: E402

pytestmark = pytest.mark.backend("torch")

SCHEMES = ["copy", "copy:away", "split", "split:truncate", "split:nearest", "kahan", "stochastic:5"]
LEAN = [scheme for scheme in SCHEMES if not scheme.startswith("copy")]
MOMENTS = "optimizer_state=bfloat16"
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, 1e-2),
    "adamw": lambda params: torch.optim.AdamW(params, 1e-2, fused=True),
}


class Net(nn.Module):
    """A tied, a frozen, a scalar and an empty parameter, channels last, and BatchNorm."""

    def __init__(self, sparse=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 16, sparse=sparse)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.conv.weight.data = torch.randn(4, 1, 3, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(64)
        self.frozen = nn.Linear(64, 16).requires_grad_(False)
        self.head = nn.Linear(16, 11, bias=False)
        if not sparse:
            self.head.weight = self.embed.weight
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, tokens):
        x = self.embed(tokens).view(-1, 1, 4, 4)
        x = self.norm(self.conv(x).flatten(1))
        return self.head(self.frozen(x)) * self.gain


def data(number=0):
    g = torch.Generator().manual_seed(number)
    return torch.randint(11, (12,), generator=g), torch.randint(11, (12,), generator=g)


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x), y)


def ready(master, make=OPTIMIZERS["adamw"], extra="", model=None, **options):
    model = Net() if model is None else model
    optimizer = make([param for param in model.parameters() if param.requires_grad])
    policy = f"model_bfloat16, master={master}" + (f", {extra}" if extra else "")
    return model, mp.prepare(model, optimizer, policy, **options)


def train(model, amp, numbers):
    return [amp.step(entropy(model), *data(number)) for number in numbers]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32 if array.dtype == np.float32 else np.uint16)


def low_bits(tensor):
    return tensor.detach().contiguous().view(torch.int16).numpy().view(np.uint16)


def everything(model, amp):
    """Return all that a run goes on from."""
    kept = {f"model {name}": value.clone() for name, value in model.state_dict().items()}
    kept |= {f"truth {n}": torch.from_numpy(v) for n, v in amp.weights().items()}
    kept |= {f"part {i}": part.clone() for i, part in enumerate(amp._tx.master_weights.beside())}
    slots = [slot for entry in amp.optimizers.values() for slot in entry.state.values()]
    for number, state in enumerate(slots):
        kept |= {f"slot {number} {n}": torch.as_tensor(v).clone() for n, v in state.items()}
    return kept


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == two[name].dtype, name
        same = torch.equal(value.nan_to_num(7.0), two[name].nan_to_num(7.0))
        assert same, name


# --- arithmetic


def hard_values():
    rng = np.random.default_rng(0)
    found = rng.integers(0, 2**32, 600_000, dtype=np.uint64).astype(np.uint32)
    found[:50_000] = (found[:50_000] & 0xFFFF0000) | 0x8000  # ties
    edges = [0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x3F808000, 0x3F818000, 0x7FFFFF, 0x800000]
    edges += [0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    found[-2 * len(edges) :] = [*edges, *(edge | 0x80000000 for edge in edges)]
    return found.view(np.float32)


SHAPES = {
    "several blocks": lambda t: t,
    "one block": lambda t: t[-200_000:].view(200, 1000),
    "other strides": lambda t: t.view(60, 10, 10, 100).permute(0, 3, 1, 2),
    "a number": lambda t: t[-24],
    "nothing": lambda t: t[:0],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_are_bit_for_bit_those_of_numpy(shape):
    assert 2 * rounding.block_of(torch.device("cpu")) < 600_000
    values = SHAPES[shape](torch.from_numpy(hard_values()))
    host = values.contiguous().numpy().copy()
    low, rest = (torch.empty_like(values, dtype=dtype) for dtype in (torch.bfloat16, torch.int16))
    for kind in ("away", "truncate", "nearest"):
        taken, ties = values.clone(), [torch.zeros(0, dtype=torch.int64)]
        for start, (part, further, source) in rounding.blocks(low, rest, taken):
            found = rounding.split(part, further, source, kind)
            ties += [] if found is None else [found + start]
        expected = reference.split(host, kind)
        np.testing.assert_array_equal(low_bits(low), expected[0])
        np.testing.assert_array_equal(bits(rest.contiguous().numpy()), bits(expected[1]))
        np.testing.assert_array_equal(torch.cat(ties).numpy(), expected[2])
        rounding.join(taken.zero_(), low, rest, kind, torch.cat(ties))
        again = reference.join(*expected[:2], kind, expected[2])
        np.testing.assert_array_equal(bits(taken.contiguous().numpy()), bits(again))
    taken, remainder = values.clone(), torch.empty_like(low)
    for _, parts in rounding.blocks(low, remainder, taken):
        rounding.compensate(*parts)
    expected = reference.compensate(host)
    np.testing.assert_array_equal(low_bits(low), expected[0])
    np.testing.assert_array_equal(low_bits(remainder), expected[1])
    rounding.sum_of(taken, low, remainder)
    sums = bits(reference.restore(*expected))
    np.testing.assert_array_equal(bits(taken.contiguous().numpy()), sums)
    drawn = reference.noise(9, 4, 2, host.size)
    for start, (part, source) in rounding.blocks(low, values.clone()):
        rounding.round_stochastic(part, source, rounding.key_of(9, 4, 2), start)
    expected = reference.round_stochastic(host, drawn.reshape(host.shape))
    np.testing.assert_array_equal(low_bits(low), expected)


@pytest.mark.parametrize("scheme", ["split", "split:truncate", "split:nearest"])
def test_ties_in_every_block_are_kept(scheme):
    block = rounding.block_of(torch.device("cpu"))
    found = hard_values()[:50_000]
    ties = torch.from_numpy(found[np.isfinite(found)])[: 2 * 20_000].view(2, -1)
    model = torch.nn.Linear(2 * block // 8, 8, bias=False)
    with torch.no_grad():
        for row, part in zip((0, 6), ties, strict=True):  # in the first block, and beyond it
            model.weight[row, : part.numel()] = part
    before = model.weight.detach().numpy().copy()
    amp = mp.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), f"model_bfloat16, master={scheme}"
    )
    np.testing.assert_array_equal(bits(amp.weights()["weight"]), bits(before))
    assert len(amp._tx.master_weights.beside()) == 1 + (scheme == "split:nearest")


# --- training


@pytest.mark.parametrize("steps", [40, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("architecture", "other", "copied", "optimizer"),
    [
        *((name, "split", "copy:away", made) for name in ("cnn", "gpt") for made in OPTIMIZERS),
        ("gpt", "split:truncate", "copy:truncate", "adamw"),
        ("cnn", "split:nearest", "copy", "adamw"),
    ],
)
def test_split_trains_as_copies_do_bit_for_bit(architecture, other, copied, optimizer, steps):
    """Each step rounds thousands of weights up, down and over a carry, so 40 meet what 200 meet."""
    entry, runs = zoo_torch.ZOO[architecture], []
    for master in (copied, other):
        model, amp = ready(master, OPTIMIZERS[optimizer], model=entry.build())
        rng, loss_fn, losses = np.random.default_rng(0), entry.loss(model), []
        torch.manual_seed(1)
        for _ in range(steps):
            losses.append(amp.step(loss_fn, *entry.tensors(entry.batch(rng))).loss)
        runs.append((losses, amp.weights(), model.state_dict()))
    assert runs[0][0] == runs[1][0]
    assert runs[0][0][0] != runs[0][0][-1]
    for place in (1, 2):
        for name, value in runs[0][place].items():
            assert (value == runs[1][place][name]).all(), name


def test_kahan_and_stochastic_follow_float32_and_none_does_not():
    entry, lr, steps = zoo_torch.ZOO["gpt"], 3e-4, 200
    batches = [entry.tensors(entry.batch(np.random.default_rng(n))) for n in range(4)]

    def run(policy, order):
        model = entry.build()
        amp = mp.prepare(
            model, torch.optim.AdamW(model.parameters(), lr), policy, count_lost_updates="off"
        )
        rng, loss_fn = np.random.default_rng(order), entry.loss(model)
        for _ in range(steps):
            amp.step(loss_fn, *batches[rng.integers(4)])
        amp.release()
        with torch.no_grad():
            return float(np.mean([loss_fn(*one).item() for one in batches]))

    band = [run("float32", order) for order in range(3)]
    width = max(band) - min(band)
    low, high = min(band) - width, max(band) + width
    for scheme in ("kahan", "stochastic:1"):
        assert low < run(f"model_bfloat16, master={scheme}", 1) < high, scheme
    stuck = run("model_bfloat16, master=none", 1)
    assert stuck > high + 20 * width


@pytest.mark.parametrize("scheme", ["none", *SCHEMES])
def test_stall_is_told_within_twenty_steps_and_only_where_it_is(scheme):
    entry = zoo_torch.ZOO["gpt"]
    rng, model = np.random.default_rng(0), entry.build()
    policy = f"model_bfloat16, master={scheme}"
    amp = mp.prepare(
        model, torch.optim.AdamW(model.parameters(), 1e-4), policy, count_lost_updates="on"
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shares = [
            amp.step(entry.loss(model), *entry.tensors(entry.batch(rng))).lost_updates
            for _ in range(20)
        ]
    assert [one.category for one in told] == ([mp.MpcoreWarning] if scheme == "none" else [])
    assert "block1.up" in shares[-1]
    most = max(shares[-1].values())
    assert most > 0.8 if scheme in ("none", "stochastic:5") else most < 0.2
    if scheme == "none":
        assert "lost to rounding in the last 20 steps" in str(told[0].message)
        assert told[0].filename == __file__


@pytest.mark.parametrize("sparse", [False, True])
def test_lost_updates_are_counted_exactly(sparse):
    table = nn.Embedding(300, 20, sparse=sparse)
    nn.init.ones_(table.weight)
    amp = mp.prepare(table, torch.optim.SGD(table.parameters(), 1.0), "model_bfloat16, master=none")
    tokens = torch.tensor([7, 150, 299, 7])
    moves = torch.full((300, 20), 1e-4)  # less than half a unit of bfloat16 at 1
    moves[150] = 0.1
    for boost, expected in ((1.0, 2 / 3), (math.inf, None)):
        result = amp.step(lambda b=boost: (table(tokens) * moves[tokens]).sum() * b)
        counts = result.lost_counts()["weight"]
        if expected is None:
            assert (counts == 0).all()
            assert result.lost_updates == {}
            continue
        looked = np.isin(sample(6000) // 20, tokens.numpy())
        assert counts[1] == looked.sum() > 30
        still = np.isin(sample(6000) // 20, [7, 299])
        assert counts[0] == still.sum()


# --- what an optimizer may be


def _muon(params):
    return torch.optim.Muon([param for param in params if param.dim() == 2])


EVERY = {
    name: getattr(torch.optim, name)
    for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD")
} | {name: getattr(torch.optim, name) for name in ("NAdam", "RAdam", "RMSprop", "Rprop", "SGD")}
EVERY["Muon"] = _muon


@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_of_torch_steps_in_parts_as_with_copies(name):
    runs = []
    for master, chunk, extra in (
        ("copy:away", None, ""),
        ("split", 200, ""),
        ("copy:away", None, MOMENTS),
        ("split", 200, MOMENTS),
    ):
        model, amp = ready(master, EVERY[name], extra)
        amp._tx.master_weights.chunk = chunk
        losses = [result.loss for result in train(model, amp, range(6))]
        runs.append((losses, amp.weights(), amp.array_bytes()["optimizer"]))
    for one, two in (runs[:2], runs[2:]):
        assert one[0] == two[0]
        for key, value in one[1].items():
            np.testing.assert_array_equal(value, two[1][key], err_msg=key)
    assert runs[0][2] == runs[1][2]
    assert runs[2][2] == runs[3][2]
    if name in ("Adam", "RMSprop", "Muon", "Adagrad"):
        assert runs[2][2] < 0.6 * runs[0][2]


def test_optimizer_with_hooks_steps_once_over_open_values():
    model, amp = ready("split")
    amp._tx.master_weights.chunk = 200
    seen = []

    def hook(optimizer, args, kwargs):
        seen.append([p.isnan().any().item() for p in optimizer.param_groups[0]["params"]])

    amp.optimizer.register_step_pre_hook(hook)
    train(model, amp, range(2))
    assert len(seen) == 2
    assert not any(any(entry) for entry in seen)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_groups_schedulers_and_sparse_gradients(scheme):
    model = Net(sparse=True)
    sparse = torch.optim.SparseAdam([model.embed.weight], 1e-2)
    dense = torch.optim.SGD([model.conv.weight], 0.1, momentum=0.9)
    policy = f"model_bfloat16, master={scheme}"
    amp = mp.prepare(model, {"sparse": sparse, "dense": dense}, policy)
    dense.add_param_group({"params": [model.norm.weight, model.frozen.bias], "lr": 1.0})
    dense.add_param_group({"params": model.head.weight, "lr": 0.0})
    model.frozen.bias.requires_grad_(True)
    scheduler = torch.optim.lr_scheduler.StepLR(dense, 1, gamma=0.5)
    before = amp.weights()
    results = train(model, amp, range(3))
    scheduler.step()
    assert [group["lr"] for group in dense.param_groups] == [0.05, 0.5, 0.0]
    after = amp.weights()
    moved = {name for name, value in after.items() if (before[name] != value).any()}
    statistics = {"norm.running_mean", "norm.running_var"}
    assert moved == statistics | {"embed.weight", "conv.weight", "norm.weight", "frozen.bias"}
    assert all(result.stepped for result in results)


# --- nothing changes


@pytest.mark.parametrize("extra", ["", MOMENTS])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_skipped_step_leaves_every_part_bit_equal(scheme, extra):
    model, amp = ready(scheme, extra=extra)
    train(model, amp, range(3))
    before = everything(model, amp)
    result = amp.step(lambda x, y: entropy(model)(x, y) * math.inf, *data())
    assert not result.stepped
    assert_equal(before, everything(model, amp))
    assert train(model, amp, [4])[0].stepped


@pytest.mark.parametrize("scheme", LEAN)
def test_optimizer_that_fails_leaves_a_whole_model(scheme):
    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                msg = "no more"
                raise RuntimeError(msg)
            return super().step(closure)

    model, amp = ready(scheme, lambda params: Failing(params, 0.05))
    train(model, amp, range(2))
    before = amp.weights()
    amp.optimizer.fails = True
    with pytest.raises(RuntimeError, match="no more"):
        train(model, amp, [2])
    for name, value in amp.weights().items():
        if "running" not in name:
            np.testing.assert_array_equal(value, before[name])
    amp.optimizer.fails = False
    assert train(model, amp, [2])[0].stepped


@pytest.mark.parametrize("scheme", LEAN)
def test_masters_take_no_memory_between_steps_and_are_no_trap(scheme):
    model, amp = ready(scheme)
    train(model, amp, range(2))
    for low, master in amp.masters.items():
        assert master.shape == low.shape
        assert master.grad is None
        assert master.untyped_storage().nbytes() == 4
        if master.numel() > 1:
            assert master.isnan().all()
            with pytest.raises(RuntimeError, match="single memory location"):
                master.detach().add_(1)
    model.zero_grad()  # of what is float32 anyway
    before = everything(model, amp)
    with amp.unguarded():
        amp.optimizer.step()  # nothing is there to step by
    assert_equal(before, everything(model, amp))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("float32", 16),
        ("mixed_bfloat16", 16),
        ("model_bfloat16", 16),
        ("model_bfloat16, master=split", 14),
        ("model_bfloat16, master=split:nearest", 14),
        ("model_bfloat16, master=kahan", 14),
        (f"model_bfloat16, master=kahan, {MOMENTS}", 10),
        (f"model_bfloat16, master=stochastic, {MOMENTS}", 8),
    ],
)
def test_bytes_per_parameter_with_adam(policy, expected):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    amp = mp.prepare(model, torch.optim.Adam(model.parameters()), policy, count_lost_updates="off")
    amp.step(lambda: model(torch.ones(4, 256)).square().mean())
    count = sum(param.numel() for param in model.parameters())
    assert sum(amp.array_bytes().values()) / count == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_is_lost_when_the_parts_follow_the_model(scheme):
    model, amp = ready(scheme)
    train(model, amp, range(2))
    before = everything(model, amp)
    for kept in amp._tx.master_weights.states.values():
        kept.follow()  # to the same device; there is no other one here
    assert_equal(before, everything(model, amp))
    assert train(model, amp, [3])[0].stepped


# --- in, out and on


@pytest.mark.parametrize(
    ("scheme", "extra"), [("none", ""), *((s, e) for s in SCHEMES for e in ("", MOMENTS))]
)
@pytest.mark.parametrize("architecture", ["net", "layers"])
def test_resumed_run_equals_the_uninterrupted_one(architecture, scheme, extra, tmp_path):
    make = {"net": scrambled, "layers": plain}[architecture]
    model, amp = ready(scheme, extra=extra, count_lost_updates="off", model=make())
    train(model, amp, range(5))
    amp.save(tmp_path / "run.amp", weights=True)
    slots = copy.deepcopy(amp.optimizer.state_dict())
    straight = [result.loss for result in train(model, amp, range(5, 25))]
    again, resumed = ready(scheme, extra=extra, count_lost_updates="off", model=make())
    resumed.load(tmp_path / "run.amp")
    resumed.optimizer.load_state_dict(slots)
    assert [result.loss for result in train(again, resumed, range(5, 25))] == straight
    model_counts = [n for n in model.state_dict() if n.endswith("num_batches_tracked")]
    again.load_state_dict({n: model.state_dict()[n] for n in model_counts}, strict=False)
    assert_equal(everything(model, amp), everything(again, resumed))


def plain():
    """Return a model whose weights have names by layer, for every framework."""
    return scrambled(nn.Sequential(nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 11)))


def scrambled(model=None):
    model = model or Net()
    torch.manual_seed(2)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn_like(param))
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_float32_checkpoint_keeps_its_truth_through_load_state_dict(scheme):
    other = scrambled()
    model, amp = ready(scheme)
    train(model, amp, [0])
    model.load_state_dict(other.state_dict())
    exact = scheme.startswith(("copy", "split"))
    for name, value in amp.weights().items():
        wanted = other.state_dict()[name].numpy()
        if exact or "norm" in name:
            np.testing.assert_array_equal(value, wanted, err_msg=name)
        else:
            np.testing.assert_allclose(value, wanted, rtol=2**-7 if "stoch" in scheme else 2**-16)
    assert model.embed.weight.dtype == torch.bfloat16
    _, fresh = ready(scheme, model=copy.deepcopy(other))
    assert {n: v.tolist() for n, v in fresh.weights().items()} == {
        n: v.tolist() for n, v in amp.weights().items()
    }
    with pytest.raises(mp.BackendError, match="`assign` must be False"):
        model.load_state_dict(other.state_dict(), assign=True)


@pytest.mark.parametrize("one", SCHEMES)
def test_weights_go_from_every_scheme_to_every_scheme(one):
    model, amp = ready(one)
    train(model, amp, range(3))
    weights = amp.weights()
    for two in ("none", *SCHEMES):
        _, other = ready(two, model=scrambled())
        other.load_weights(weights)
        for name, value in other.weights().items():
            loose = 2**-16 if two == "kahan" else 2**-7
            exact = two.startswith(("copy", "split")) or one == "stochastic:5" or two == one
            np.testing.assert_allclose(value, weights[name], rtol=0 if exact else loose, atol=0)


@pytest.mark.parametrize("extra", ["", MOMENTS])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_release_gives_the_truth_back(scheme, extra):
    model, amp = ready(scheme, extra=extra)
    train(model, amp, range(3))
    weights, optimizer = amp.weights(), amp.optimizer
    amp.release()
    for name, value in model.state_dict().items():
        if name in weights:
            assert value.dtype == torch.float32
            np.testing.assert_array_equal(value.numpy(), weights[name], err_msg=name)
    assert set(optimizer.param_groups[0]["params"]) <= set(model.parameters())
    slots = [slot for state in optimizer.state.values() for slot in state.values()]
    assert {slot.dtype for slot in slots} == {torch.float32}
    assert model.head.weight is model.embed.weight
    assert not model.frozen.weight.requires_grad
    before = model.conv.weight.clone()
    entropy(model)(*data()).backward()
    optimizer.step()
    assert not torch.equal(before, model.conv.weight)


def test_torch_makes_loaded_moments_16_bit_and_masters_keep_them():
    model, amp = ready("split")
    train(model, amp, range(3))
    slots = amp.optimizer.state_dict()
    assert {slot["exp_avg"].dtype for slot in slots["state"].values()} == {torch.float32}
    bare = Net().bfloat16()
    native = OPTIMIZERS["adamw"]([p for p in bare.parameters() if p.requires_grad])
    native.load_state_dict(slots)
    assert {slot["exp_avg"].dtype for slot in native.state.values()} == {torch.bfloat16}
    for scheme in SCHEMES:
        _, other = ready(scheme)
        other.optimizer.load_state_dict(slots)
        for new, old in zip(other.optimizer.state.values(), slots["state"].values(), strict=True):
            assert torch.equal(new["exp_avg"], old["exp_avg"])
            assert new["exp_avg"].dtype == torch.float32
    _, narrow = ready("split", extra=MOMENTS)
    narrow.optimizer.load_state_dict(slots)
    assert {
        slot["exp_avg"].dtype for slot in narrow.optimizer.state.values() if slot["exp_avg"].dim()
    } == {torch.bfloat16}


@pytest.mark.parametrize("scheme", LEAN)
def test_copies_and_pickles_of_the_model_go_their_own_way(scheme):
    model, amp = ready(scheme)
    train(model, amp, range(2))
    before = everything(model, amp)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(copy.deepcopy(model)))):
        twin.load_state_dict(scrambled().state_dict())
        assert twin.conv.weight.dtype == torch.bfloat16
        assert not torch.equal(twin.conv.weight, model.conv.weight)
    assert_equal(before, everything(model, amp))


@pytest.mark.parametrize("scheme", ["split", "kahan"])
def test_compiled_model_trains_as_the_eager_one(scheme):
    runs = []
    for compiled in (False, True):
        model, amp = ready(scheme, count_lost_updates="off")
        run = torch.compile(model, backend="aot_eager") if compiled else model
        steps = [amp.step(entropy(run), *data(number)).loss for number in range(3)]
        runs.append((steps, amp.weights()))
    torch.compiler.reset()
    assert runs[0][0] == runs[1][0]
    for name, value in runs[0][1].items():
        np.testing.assert_array_equal(value, runs[1][1][name], err_msg=name)


@pytest.mark.parametrize("scheme", ["copy", "split", "stochastic:5"])
def test_windows_of_a_loop_equal_steps(scheme):
    runs = []
    for window in (False, True):
        model, amp = ready(scheme)
        for number in range(3):
            x, y = data(number)
            if not window:
                amp.step(entropy(model), x, y, micro_batches=3, clip_norm=0.5)
                continue
            for start in (0, 4, 8):
                amp.backward(entropy(model)(x[start : start + 4], y[start : start + 4]))
            amp.unscale(mean=True)
            amp.apply(clip_norm=0.5)
        runs.append(everything(model, amp))
    assert_equal(*runs)
