"""The shim of torch.amp against torch's own GradScaler, and what ``safe=True`` mends."""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore.errors import MpcoreWarning, PolicyError
from mpcore.scaling.transition import LossScaleState, advance

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mpcore_compat import torch_amp  # noqa: E402
from mpcore_compat.torch_amp import scaler as shim  # noqa: E402

pytestmark = pytest.mark.backend("torch")

Native = torch.amp.GradScaler
Ours = torch_amp.GradScaler
TRACES = json.loads(
    (Path(__file__).parents[1] / "golden" / "loss_scale_traces.json").read_text(encoding="utf-8")
)


def safe(**options):
    return Ours("cpu", safe=True, **options)


def weight(*values, dtype=torch.float32):
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def give(param, *values):
    """Put scaled gradients where a backward pass would have left them."""
    param.grad = torch.tensor(values, dtype=param.dtype)


def begin(scaler):
    """Make the scaler's tensors, as the first ``scale`` of a loop does."""
    return scaler.scale(torch.ones(()))


def window(scaler, *optimizers):
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def same(x, y):
    """Equal bit for bit, NaN included, through containers."""
    if isinstance(x, torch.Tensor):
        if x.dtype != y.dtype or x.layout != y.layout:
            return False
        if x.is_sparse:
            return same(x._values(), y._values()) and torch.equal(x._indices(), y._indices())
        return torch.equal(torch.isnan(x), torch.isnan(y)) and torch.equal(
            torch.nan_to_num(x, nan=0.5), torch.nan_to_num(y, nan=0.5)
        )
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same(x[key], y[key]) for key in x)
    if isinstance(x, list | tuple):
        return type(x) is type(y) and len(x) == len(y) and all(map(same, x, y))
    return x == y or (x != x and y != y)


# The twin: one sequence of calls on torch's scaler and on ours


class World:
    """Models, optimizers and a scaler; everything that a training script could do to them."""

    def __init__(self, kind, options, seed):
        torch.manual_seed(seed)
        self.kind = kind
        self.scaler = kind("cpu", **options)
        self.dense = nn.Linear(3, 2)
        self.other = nn.Linear(3, 2)
        self.table = nn.Embedding(5, 2, sparse=True)
        self.half = weight(1.0, -2.0, dtype=torch.float16)
        self.idle = weight(1.0)
        self.brain = weight(0.5, 0.25, dtype=torch.bfloat16)
        optim = torch.optim
        self.optimizers = [
            optim.SGD(self.dense.parameters(), lr=0.1, momentum=0.9),
            optim.AdamW([*self.other.parameters(), self.brain], lr=0.05),
            optim.Adam(self.other.parameters(), lr=0.01, fused=True),
            optim.SGD(self.dense.parameters(), lr=0.02, fused=True),
            optim.SGD(self.table.parameters(), lr=0.1),
            optim.SGD([self.half], lr=0.1),
            optim.SGD([self.idle], lr=0.1),
            optim.SGD([self.half, self.brain], lr=0.1, fused=True),
        ]

    def params(self):
        modules = (self.dense, self.other, self.table)
        loose = [self.half, self.idle, self.brain]
        return [p for module in modules for p in module.parameters()] + loose

    def backward(self, seed, which):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 3, generator=g)
        rows = torch.randint(5, (3,), generator=g)
        losses = [
            self.dense(x).pow(2).mean(),
            self.other(x).abs().sum(),
            self.table(rows).pow(2).sum(),
            self.half.float().pow(2).sum() * 1e-3,
            self.brain.float().sum(),
        ]
        chosen = [loss for index, loss in enumerate(losses) if which >> index & 1]
        scaled = self.scaler.scale(chosen)
        for loss in scaled:
            loss.backward()
        return scaled

    def inject(self, number, value):
        param = self.params()[number % len(self.params())]
        if param.grad is not None:
            values = param.grad._values() if param.grad.is_sparse else param.grad
            values.view(-1)[0] = value

    def clear(self, number, to_none):
        self.optimizers[number].zero_grad(set_to_none=to_none)

    def renew(self, how):
        if how == "pickle":
            self.scaler = pickle.loads(pickle.dumps(self.scaler))
        elif how == "copy":
            self.scaler = copy.deepcopy(self.scaler)
        else:
            state = self.scaler.state_dict()
            self.scaler = self.kind("cpu", enabled=self.scaler.is_enabled())
            self.scaler.load_state_dict(state)

    def call(self, name, *args):
        scaler, optimizers = self.scaler, self.optimizers
        calls = {
            "backward": self.backward,
            "inject": self.inject,
            "clear": self.clear,
            "renew": self.renew,
            "unscale_": lambda i: scaler.unscale_(optimizers[i]),
            "step": lambda i: scaler.step(optimizers[i]),
            "closure": lambda i: scaler.step(optimizers[i], closure=lambda: 1.0),
            "positional": lambda i: scaler.step(optimizers[i], lambda: torch.ones(())),
            "update": scaler.update,
            "tensor": lambda value: scaler.update(torch.tensor([value])),
            "growth": scaler.set_growth_factor,
            "backoff": scaler.set_backoff_factor,
            "interval": scaler.set_growth_interval,
            "found": lambda i: scaler._found_inf_per_device(optimizers[i]),
            "check": lambda i: scaler._check_inf_per_device(optimizers[i]),
            "scale": lambda value: scaler.scale(torch.tensor([value], dtype=torch.float16)),
        }
        try:
            result = calls[name](*args)
        except Exception as exc:
            return type(exc), str(exc) if type(exc) is not AssertionError else ""
        return result

    def state(self):
        scaler = self.scaler
        optimizers = [list(o.state_dict()["state"].values()) for o in self.optimizers]
        getters = ("get_growth_factor", "get_backoff_factor", "get_growth_interval")
        numbers = [getattr(scaler, name)() for name in getters] if scaler.is_enabled() else []
        grads = [p.grad for p in self.params()]
        return [
            *(p.data for p in self.params()),
            *(torch.zeros(()) if grad is None else grad for grad in grads),
            [grad is None for grad in grads],
            optimizers,
            scaler.get_scale(),
            scaler._get_growth_tracker(),
            scaler.state_dict(),
            numbers,
        ]


OPTIMIZER = st.integers(0, 7)
VALUES = st.sampled_from([math.inf, -math.inf, math.nan, 1e38, 0.0, 3.0])
CALL = st.one_of(
    st.tuples(st.just("backward"), st.integers(0, 99), st.integers(1, 31)),
    st.tuples(st.just("inject"), st.integers(0, 9), VALUES),
    st.tuples(st.just("clear"), OPTIMIZER, st.booleans()),
    st.tuples(st.just("unscale_"), OPTIMIZER),
    st.tuples(st.just("step"), OPTIMIZER),
    st.tuples(st.just("step"), OPTIMIZER),
    st.tuples(st.just("update")),
    st.tuples(st.just("update")),
    st.tuples(st.just("renew"), st.sampled_from(["pickle", "copy", "state"])),
    st.tuples(st.sampled_from(["closure", "positional", "found", "check"]), OPTIMIZER),
    st.tuples(
        st.sampled_from(["update", "tensor"]),
        st.sampled_from([0.0, 2.0**-140, 1.0, 8.0, 2.0**127, math.inf, math.nan]),
    ),
    st.tuples(st.just("growth"), st.sampled_from([1.1, 2.0, 3.7, 2.0**20, 0.5])),
    st.tuples(st.just("backoff"), st.sampled_from([0.5, 0.3, 1e-30, 2.0])),
    st.tuples(st.just("interval"), st.sampled_from([1, 2, 3, 0, -1, 2.5])),
    st.tuples(st.just("scale"), st.sampled_from([1.0, 1000.0])),
)
OPTIONS = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([2.0**16, 1.0, 3e38, 2.0**-126, 7.3, 0.0]),
        "growth_factor": st.sampled_from([2.0, 1.1, 1e30]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 3),
        "enabled": st.sampled_from([True, True, True, False]),
    }
)


@pytest.mark.slow
@settings(max_examples=400)
@given(OPTIONS, st.lists(CALL, max_size=24), st.integers(0, 9))
def test_any_sequence_of_calls_does_what_torch_does(options, calls, seed):
    native, ours = World(Native, options, seed), World(Ours, options, seed)
    for call in [("backward", 1, 31), *calls]:
        theirs, mine = native.call(*call), ours.call(*call)
        assert same(theirs, mine), call
        assert same(native.state(), ours.state()), call


LOOP = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 31), st.booleans()), max_size=12)


@pytest.mark.slow
@settings(max_examples=100)
@given(OPTIONS, LOOP, st.integers(0, 9))
def test_orderly_loops_do_what_torch_does(options, steps, seed):
    """Mostly legal calls, which a random sequence rarely holds for long."""
    native, ours = World(Native, options, seed), World(Ours, options, seed)
    for batch, bad, early in steps:
        calls = [("backward", batch, 31)]
        calls += [("inject", i, math.inf) for i in range(5) if bad >> i & 1]
        calls += [("unscale_", 1)] if early else []
        calls += [("step", i) for i in (3, 1, 4)] + [("update",)]
        calls += [("clear", i, bool(bad & 1)) for i in range(8)]
        for call in calls:
            assert same(native.call(*call), ours.call(*call)), call
            assert same(native.state(), ours.state()), call


def test_the_comparison_can_fail():
    native, ours = World(Native, {}, 0), World(Ours, {"init_scale": 3.0}, 0)
    assert same(native.state()[:5], ours.state()[:5])
    assert not same(native.call("backward", 1, 31), ours.call("backward", 1, 31))
    assert not same(native.state(), ours.state())


def test_a_lowered_interval_waits_for_an_overflow():
    """Torch grows when the count equals the interval: one beyond it goes on counting."""
    trails = []
    for kind in (Native, Ours, lambda device, **o: safe(**o)):
        scaler, param = kind("cpu", growth_interval=10), weight(1.0)
        optimizer = torch.optim.SGD([param], lr=0.0)
        begin(scaler)
        trail = []
        for step in range(24):
            if step == 5:
                scaler.set_growth_interval(3)
            give(param, math.inf if step == 18 else 0.0)
            window(scaler, optimizer)
            trail.append((scaler.get_scale(), scaler._get_growth_tracker()))
        trails.append(trail)
    assert trails[0] == trails[1]
    assert trails[0][17] == (2.0**16, 18)
    assert trails[0][23] == (2.0**16, 2)
    assert trails[2][5] == (2.0**17, 0)  # safe grows at once


def test_sparse_float16_gradients_are_merged():
    """As torch does there alone: 64000 twice is beyond float16."""
    rows, values = torch.tensor([[1, 1]]), torch.tensor([[64000.0], [64000.0]]).half()
    answers = []
    for kind in (Native, Ours):
        scaler, param = kind("cpu"), nn.Parameter(torch.zeros(3, 1).half())
        param.grad = torch.sparse_coo_tensor(rows, values, (3, 1), check_invariants=True)
        begin(scaler)
        found = scaler._check_inf_per_device(torch.optim.SGD([param], lr=1.0))
        answers.append((found, param.grad.is_coalesced()))
    assert same(answers[0], answers[1])
    assert answers[1] == ({torch.device("cpu"): torch.ones(())}, True)


def test_a_factor_that_is_none_is_refused():
    """The one thing that torch takes and the core does not; torch's scale turns 0 or negative."""
    scaler = Ours("cpu")
    begin(scaler)
    give(param := weight(1.0), 1.0)
    scaler.set_backoff_factor(0.0)
    scaler.step(torch.optim.SGD([param], lr=0.1))
    with pytest.raises(PolicyError, match=r"`backoff_factor` must be > 0, got 0\.0"):
        scaler.update()
    assert scaler.get_scale() == 2.0**16


# Golden traces


def replay(scaler, trace):
    param = weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.0)
    begin(scaler)
    scales, trackers, skips = [], [], []
    for bad in trace["found_inf"]:
        give(param, math.inf if bad else 0.0)
        window(scaler, optimizer)
        scales.append(scaler.get_scale())
        trackers.append(scaler._get_growth_tracker())
        skips.append(int(scaler.last_skipped))
    assert scaler.skipped_steps == sum(skips)
    return scales, trackers, skips


@pytest.mark.parametrize(
    ("implementation", "made", "least"),
    [
        ("torch.amp.GradScaler", lambda **o: Ours("cpu", **o), 38),
        ("torch_npu.npu.amp.GradScaler", torch_amp.npu.GradScaler, 30),
    ],
)
def test_recorded_runs_are_reproduced(implementation, made, least):
    traces = [t for t in TRACES if t["implementation"] == implementation]
    assert len(traces) >= least
    for trace in traces:
        scales, trackers, skips = replay(made(**trace["config"]), trace)
        assert scales == [float(s) for s in trace["scale_after"]], trace["id"]
        assert trackers == trace["tracker_after"]["_growth_tracker"], trace["id"]
        assert skips == [int(bool(bad)) for bad in trace["found_inf"]]


# On a device the scale is moved by tensors; here both ways run on the CPU.


@given(
    st.sampled_from([2.0**16, 1.0, 2.0**-149, 0.0, 3e38, math.inf]),
    st.integers(0, 5),
    st.integers(1, 3),
    st.sampled_from([(2.0, 0.5), (1.1, 0.3), (1e30, 1e-30)]),
    st.lists(st.booleans(), max_size=12),
    st.booleans(),
)
def test_tensors_move_as_numbers_do(scale, good, interval, factors, outcomes, guarded):
    ends = []
    for as_tensor in (True, False):
        growth, backoff = factors
        scaler = Ours("cpu", 2.0**16, growth, backoff, interval, safe=guarded)
        begin(scaler)
        scaler._scale.fill_(scale if not guarded else 2.0**10)
        scaler._growth_tracker.fill_(good)
        held, trail = scaler._scale, []
        for finite in outcomes:
            answer = torch.tensor(finite) if as_tensor else finite
            scaler._move(scaler._scale, scaler._growth_tracker, answer)
            trail.append((scaler.get_scale(), scaler._get_growth_tracker(), scaler.skipped_steps))
        assert scaler._scale is held
        assert scaler._scale.dtype == torch.float32
        ends.append((trail, scaler.state_dict()))
    assert ends[0] == ends[1]


# State


@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize(("first", "second"), [(Ours, Native), (Native, Ours)])
def test_state_goes_over_at_any_step(first, second, at):
    outcomes = [True, True, False, True, True, True, False, True, True]

    def run(scaler, part):
        param = weight(1.0)
        optimizer = torch.optim.SGD([param], lr=0.0)
        begin(scaler)
        for finite in part:
            give(param, 0.0 if finite else math.nan)
            window(scaler, optimizer)
        return scaler

    options = {"init_scale": 1000.0, "growth_factor": 1.7, "growth_interval": 2}
    whole = run(Native("cpu", **options), outcomes)
    half = run(first("cpu", **options), outcomes[:at])
    rest = second("cpu")
    rest.load_state_dict(half.state_dict())
    assert run(rest, outcomes[at:]).state_dict() == whole.state_dict()


def test_empty_state_is_refused_as_by_torch():
    for scaler in (Ours("cpu"), safe()):
        with pytest.raises(RuntimeError, match="source state dict is empty"):
            scaler.load_state_dict({})
    off = Ours("cpu", enabled=False, safe=True)
    off.load_state_dict({})
    assert off.state_dict() == {}
    assert not off.last_skipped


def test_safe_state_counts_skips_and_goes_both_ways():
    scaler, param = safe(), weight(1.0)
    begin(scaler)
    give(param, math.inf)
    window(scaler, torch.optim.SGD([param], lr=0.1))
    state = scaler.state_dict()
    assert state["skipped_steps"] == 1
    native = Native("cpu")
    native.load_state_dict(state)
    assert native.get_scale() == 2.0**15
    again = safe()
    again.load_state_dict(state)
    assert again.skipped_steps == 1
    again.load_state_dict(native.state_dict())
    assert again.skipped_steps == 0
    for twin in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert twin.state_dict() == state
        assert twin.last_skipped


@pytest.mark.parametrize(("saved", "becomes"), [(0.0, 1.0), (2.0**40, 2.0**24)])
def test_safe_brings_a_lost_scale_back(saved, becomes):
    state = Native("cpu", init_scale=saved).state_dict()
    scaler = safe()
    with pytest.warns(MpcoreWarning, match="outside the safe range and becomes"):
        scaler.load_state_dict(state)
    assert scaler.get_scale() == becomes


def test_safe_refuses_impossible_numbers_and_keeps_its_state():
    scaler = safe()
    for change in (
        lambda: scaler.set_growth_factor(1.0),
        lambda: scaler.set_backoff_factor(1.5),
        lambda: scaler.set_growth_interval(2.5),
        lambda: scaler.load_state_dict({**scaler.state_dict(), "growth_factor": math.inf}),
    ):
        before = scaler.state_dict()
        with pytest.raises((PolicyError, TypeError)):
            change()
        assert scaler.state_dict() == before
    begin(scaler)
    with pytest.raises(PolicyError, match=r"`new_scale` must be in \[1, 1.67772e\+07\]"):
        scaler.update(0.25)
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0
    for init in (0.0, -1.0, math.inf, math.nan, 2.0**-130):
        with pytest.raises(PolicyError, match="`init_scale` must be"):
            safe(init_scale=init)
    assert safe(init_scale=1 / 3).get_scale() == 1 / 3


# What others look at


def test_it_is_a_grad_scaler_with_its_signature():
    assert issubclass(Ours, Native)
    assert torch_amp.autocast is torch.amp.autocast
    assert torch_amp.custom_fwd is torch.amp.custom_fwd
    assert torch_amp.custom_bwd is torch.amp.custom_bwd
    assert torch_amp.is_autocast_available is torch.amp.is_autocast_available
    pairs = [
        (Native, Ours),
        (torch.cuda.amp.GradScaler, torch_amp.cuda.GradScaler),
        (torch.cpu.amp.GradScaler, torch_amp.cpu.GradScaler),
    ]
    for theirs, ours in pairs:
        wanted = {n: (p.default, p.kind) for n, p in inspect.signature(theirs).parameters.items()}
        got = {n: (p.default, p.kind) for n, p in inspect.signature(ours).parameters.items()}
        assert got.pop("safe") == (False, inspect.Parameter.KEYWORD_ONLY)
        assert list(got.items()) == list(wanted.items())
        for name, theirs_method in inspect.getmembers(theirs, inspect.isfunction):
            if not name.startswith("__"):
                names = list(inspect.signature(theirs_method).parameters)
                assert list(inspect.signature(getattr(ours, name)).parameters) == names


@pytest.mark.parametrize("name", ["cuda", "cpu"])
def test_old_spellings(name):
    module = getattr(torch_amp, name)
    native = getattr(torch, name).amp
    with pytest.warns(FutureWarning, match=rf"`torch.{name}.amp.GradScaler\(args...\)` is dep"):
        scaler = module.GradScaler(8.0, 3.0, 0.25, 7, enabled=name == "cpu")
    assert isinstance(scaler, native.GradScaler)
    assert isinstance(scaler, Ours)
    assert module.autocast is native.autocast
    assert set(module.__all__) <= set(dir(module))
    if name == "cpu":
        assert (scaler.get_scale(), scaler.get_growth_interval()) == (8.0, 7)
        assert pickle.loads(pickle.dumps(scaler)).state_dict() == scaler.state_dict()


def test_without_cuda_it_warns_and_turns_off_as_torch_does():
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    for kind in (Native, Ours):
        with pytest.warns(UserWarning, match="CUDA is not available"):
            scaler = kind(growth_interval=3)
        assert not scaler.is_enabled()
        assert scaler.get_scale() == 1.0


def test_factors_out_of_range_raise_as_in_torch():
    for options in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        for kind in (Native, Ours, lambda *a, **o: Ours(*a, safe=True, **o)):
            with pytest.raises(AssertionError, match="factor must be"):
                kind("cpu", **options)


def test_others_may_make_its_tensors():
    """As Accelerate does after loading a state (accelerate/accelerator.py)."""
    scaler = Ours("cpu")
    scaler._lazy_init_scale_growth_tracker(scaler._device)
    assert scaler._scale.item() == 2.0**16


def test_it_stands_where_torchs_stood(monkeypatch):
    """Some put it into torch itself; its own base is not looked up there."""
    monkeypatch.setattr(torch.amp, "GradScaler", Ours)
    assert isinstance(torch.amp.GradScaler("cpu"), Native)


def test_subclasses_may_override_the_private_step():
    """As Lightning's and others' do."""

    class Counting(Ours):
        steps = 0

        def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
            self.steps += 1
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

    scaler, param = Counting("cpu"), weight(1.0)
    begin(scaler)
    give(param, 1.0)
    window(scaler, torch.optim.SGD([param], lr=0.1))
    assert scaler.steps == 1


def test_it_holds_no_optimizer():
    scaler, param = safe(), weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.1)
    begin(scaler)
    give(param, 1.0)
    window(scaler, optimizer)
    watch = weakref.ref(optimizer)
    del optimizer
    assert watch() is None


# One changed line


SCRIPT = """
import hashlib, torch
from torch import nn
from torch.nn import functional as F
IMPORT
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
)
optimizer = torch.optim.OPTIMIZER
scaler = GradScaler("cpu", growth_interval=4)
scales = []
for step in range(50):
    x = torch.randn(8, 1, 8, 8) * (1e4 if step % 11 == 7 else 1.0)
    y = torch.randint(3, (8,))
    optimizer.zero_grad()
    with autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if step % 3 == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
tensors = list(model.state_dict().values())
slots = [t for s in optimizer.state_dict()["state"].values() for t in s.values()]
tensors += [t for t in slots if t is not None]
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()
print(digest, len(set(scales)), scales)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    ["SGD(model.parameters(), lr=0.1, momentum=0.9)", "AdamW(model.parameters(), fused=True)"],
)
@pytest.mark.day
def test_a_script_with_one_changed_line_trains_the_same(optimizer):
    lines = [
        f"from {module} import autocast, GradScaler"
        for module in ("torch.amp", Ours.__module__[:-7])
    ]
    outputs = []
    for line in lines:
        text = SCRIPT.replace("IMPORT", line).replace("OPTIMIZER", optimizer)
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert int(outputs[0].split()[1]) > 2  # the scale moved both ways


# safe=True, beside what torch does


def overflow(scaler, times):
    param = weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.5)
    begin(scaler)
    for _ in range(times):
        give(param, math.inf)
        window(scaler, optimizer)
    give(param, scaler.get_scale())  # the true gradient is 1
    window(scaler, optimizer)
    return scaler.get_scale(), param.item()


def test_a_scale_that_fell_to_zero():
    """166 overflows in a row: torch's scale is 0 for good, and the next good batch is lost."""
    scale, value = overflow(Native("cpu"), 166)
    assert scale == 0.0
    assert not math.isfinite(value)
    assert overflow(Ours("cpu"), 166)[0] == 0.0
    assert overflow(safe(), 166) == (1.0, 0.5)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 3))
def test_safe_follows_the_cores_machine(outcomes, interval):
    scaler = safe(growth_interval=interval, init_scale=2.0**22)
    rule = scaler._current_rule()
    state, param = LossScaleState(2.0**22), weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.0)
    begin(scaler)
    for finite in outcomes:
        give(param, 0.0 if finite else math.nan)
        window(scaler, optimizer)
        state = advance(rule, state, finite)
        assert (scaler.get_scale(), scaler._get_growth_tracker()) == state[:2]
        assert scaler.skipped_steps == state.skipped_steps
        assert 1.0 <= scaler.get_scale() <= 2.0**24


def two(scaler, first=(1.0,), second=(1.0,)):
    """Two optimizers over losses of one update; returns their weights."""
    a, b = weight(1.0), weight(1.0)
    optimizers = [torch.optim.SGD([p], lr=0.5) for p in (a, b)]
    for x, y in zip(first, second, strict=True):
        for param, factor in ((a, x), (b, y)):
            param.grad = None
            scaler.scale((param * factor).sum()).backward()
        window(scaler, *optimizers)
    return a.item(), b.item()


@pytest.mark.parametrize("finite_steps", [0, 1, 3])
def test_two_optimizers_move_together_or_not_at_all(finite_steps):
    good = [0.0] * finite_steps
    assert two(Native("cpu"), [*good, 1.0], [*good, math.inf]) == (0.5, 1.0)
    for bad in (([*good, 1.0], [*good, math.inf]), ([*good, math.inf], [*good, 1.0])):
        scaler = safe()
        assert two(scaler, *bad) == (1.0, 1.0)
        assert scaler.last_skipped
        assert scaler.get_scale() == 2.0**15
    assert two(safe(), [*good, 1.0], [*good, 1.0]) == (0.5, 0.5)


def test_an_overflow_that_only_the_division_makes_in_the_other_optimizer():
    scaler = safe(init_scale=2.0**-10)
    a, b = weight(1.0), weight(1.0)
    optimizers = [torch.optim.SGD([p], lr=1.0) for p in (a, b)]
    scaler.scale((a + b).sum()).backward()
    give(b, 1e38)
    window(scaler, *optimizers)
    assert (a.item(), b.item()) == (1.0, 1.0)


def test_both_unscaled_first():
    for kind, expected in ((lambda: Native("cpu"), 0.5), (safe, 1.0)):
        scaler, a, b = kind(), weight(1.0), weight(1.0)
        optimizers = [torch.optim.SGD([p], lr=0.5) for p in (a, b)]
        scaler.scale((a + b * math.inf).sum()).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        window(scaler, *optimizers)
        assert a.item() == expected
        assert b.item() == 1.0


def gan(scaler, faults, *, updates, detached=True, zero_first=False):
    """Alternate two networks; ``faults``: steps at which D's or G's loss overflows.

    Returns who moved in each step.
    """
    d, g = weight(1.0), weight(1.0)
    opt_d, opt_g = (torch.optim.SGD([p], lr=0.25) for p in (d, g))
    moved = []
    for step in range(12):
        if zero_first:
            opt_d.zero_grad(), opt_g.zero_grad()
        before = d.item(), g.item()
        fake = g * 1.0
        opt_d.zero_grad()
        factor = math.inf if ("d", step) in faults else 1.0
        scaler.scale((d * (fake.detach() if detached else fake) * factor).sum()).backward()
        scaler.step(opt_d)
        if updates == 2:
            scaler.update()
        opt_g.zero_grad()
        factor = math.inf if ("g", step) in faults else 1.0
        scaler.scale((d * g * factor).sum()).backward()
        scaler.step(opt_g)
        scaler.update()
        moved.append((d.item() != before[0], g.item() != before[1]))
    return moved


@pytest.mark.parametrize("zero_first", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_gan_with_an_update_each(detached, zero_first):
    """An overflow of one network concerns that network alone."""
    faults = {("d", 0), ("g", 1), ("d", 4), ("d", 5), ("g", 8)}
    moved = gan(safe(), faults, updates=2, detached=detached, zero_first=zero_first)
    for step, (d, g) in enumerate(moved):
        assert d == (("d", step) not in faults), step
        assert g == (("g", step) not in faults), step


@pytest.mark.parametrize("zero_first", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_gan_with_one_update(detached, zero_first):
    """An overflow of the first stops the second; the first has moved when the second overflows."""
    faults = {("d", 0), ("g", 1), ("d", 4), ("d", 5), ("g", 8)}
    moved = gan(safe(), faults, updates=1, detached=detached, zero_first=zero_first)
    for step, (d, g) in enumerate(moved):
        assert d == (("d", step) not in faults), step
        assert g == (("d", step) not in faults and ("g", step) not in faults), step


def test_gans_without_faults_train_as_with_torch():
    for updates in (1, 2):
        assert gan(safe(), set(), updates=updates) == gan(Native("cpu"), set(), updates=updates)


def test_an_optimizer_that_steps_every_second_time():
    """Old gradients that were used, and stay where they are, concern nobody."""
    scaler, a, b = safe(), weight(1.0), weight(1.0)
    optimizers = [torch.optim.SGD([p], lr=0.125) for p in (a, b)]
    for step in range(6):
        a.grad = None
        before = a.item()
        if step % 2 == 0:
            b.grad = None
            scaler.scale((b * (math.inf if step == 2 else 1.0)).sum()).backward()
        scaler.scale(a.sum()).backward()
        window(scaler, *(optimizers if step % 2 == 0 else optimizers[:1]))
        assert (a.item() != before) == (step != 2), step
    assert b.grad is not None


def test_float16_gradients():
    for kind in (Native, Ours):
        param = weight(1.0, dtype=torch.float16)
        scaler = kind("cpu", init_scale=4.0)
        begin(scaler)
        give(param, 4.0)
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scaler.step(torch.optim.SGD([param], lr=0.5))
    scaler = safe(init_scale=4.0)
    begin(scaler)
    window(scaler, torch.optim.SGD([param], lr=0.5))
    assert param.item() == 0.5
    give(param, math.inf)
    window(scaler, torch.optim.SGD([param], lr=0.5))
    assert param.item() == 0.5
    assert scaler.last_skipped


def test_a_second_unscale_does_nothing():
    for kind in (Native, Ours, lambda device: safe()):
        scaler, param = kind("cpu"), weight(1.0)
        optimizer = torch.optim.SGD([param], lr=0.5)
        begin(scaler)
        give(param, 2.0**16)
        scaler.unscale_(optimizer)
        if getattr(scaler, "_safe", False):
            scaler.unscale_(optimizer)
        else:
            with pytest.raises(RuntimeError, match="already been called"):
                scaler.unscale_(optimizer)
        window(scaler, optimizer)
        assert param.item() == 0.5


def test_optimizers_without_gradients():
    frozen = torch.optim.SGD([weight(1.0)], lr=0.5)
    for kind in (Native, Ours):
        scaler = kind("cpu")
        begin(scaler)
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.step(frozen)
        with pytest.raises(AssertionError, match="No inf checks"):
            scaler.update()
    scaler = safe(growth_interval=1)
    begin(scaler)
    window(scaler, frozen)
    scaler.update()
    assert scaler.get_scale() == 2.0**16  # nothing was seen, nothing is concluded
    assert not scaler.last_skipped
    give(param := weight(1.0), 2.0**16)
    window(scaler, torch.optim.SGD([param], lr=0.5), frozen)
    assert param.item() == 0.5
    assert scaler.get_scale() == 2.0**17


def test_what_safe_still_refuses():
    scaler, param = safe(), weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.5)
    give(param, 1.0)
    for call in (lambda: scaler.step(optimizer), scaler.update, lambda: scaler.unscale_(optimizer)):
        with pytest.raises(AssertionError, match="_scale is None"):
            call()
    begin(scaler)
    for closure in ({"closure": lambda: 1.0}, {}):
        with pytest.raises(RuntimeError, match="`closure` must not be given"):
            scaler.step(optimizer, *([] if closure else [lambda: 1.0]), **closure)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="`step` must be called once"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    scaler.update()


def test_an_overflow_made_by_the_division():
    """Scale 2^-10, scaled gradient 1e38: torch checks before it divides."""
    results = []
    for scaler in (Native("cpu", init_scale=2.0**-10), safe(init_scale=2.0**-10)):
        param = weight(1.0)
        begin(scaler)
        give(param, 1e38)
        window(scaler, torch.optim.SGD([param], lr=1.0))
        results.append((param.item(), scaler.get_scale()))
    assert results[0] == (-math.inf, 2.0**-10)
    assert results[1] == (1.0, 2.0**-10)  # skipped; its floor is where it started


def test_the_sum_of_a_sparse_gradients_duplicates():
    rows = torch.tensor([[1, 1]])
    values = torch.tensor([[3e38], [3e38]])
    for scaler, skipped in ((Native("cpu"), False), (safe(), True)):
        table = nn.Embedding(3, 1, sparse=True)
        before = table.weight.detach().clone()
        table.weight.grad = torch.sparse_coo_tensor(rows, values, (3, 1), check_invariants=True)
        begin(scaler)
        scaler._scale.fill_(1.0)
        window(scaler, torch.optim.SGD(table.parameters(), lr=1.0))
        assert torch.equal(table.weight, before) == skipped


@pytest.mark.parametrize("fused", [False, True])
def test_safe_and_fused_optimizers(fused):
    scaler, a, b = safe(), weight(1.0), weight(1.0)
    optimizers = [torch.optim.AdamW([p], lr=0.5, weight_decay=0.0, fused=fused) for p in (a, b)]
    scaler.scale((a + b * math.inf).sum()).backward()
    window(scaler, *optimizers)
    assert (a.item(), b.item()) == (1.0, 1.0)
    a.grad = b.grad = None
    scaler.scale((a + b).sum()).backward()
    window(scaler, *optimizers)
    assert a.item() == b.item() == pytest.approx(0.5)


def test_step_returns_what_the_optimizer_returns():
    class Loud(torch.optim.SGD):
        def step(self, word, *, twice):
            super().step()
            return word * twice

    for kind in (Ours, lambda device: safe()):
        scaler, param = kind("cpu"), weight(1.0)
        optimizer = Loud([param], lr=0.1)
        begin(scaler)
        give(param, 1.0)
        assert scaler.step(optimizer, "ab", twice=2) == "abab"
        scaler.update()
        give(param, math.nan)
        assert scaler.step(optimizer, "ab", twice=2) is None


@settings(max_examples=150)
@given(st.lists(CALL, max_size=24), st.integers(0, 9))
def test_safe_raises_only_what_is_written(calls, seed):
    allowed = ("`closure`", "`step` must be called once", "after step", "_scale is None", "pickled")
    world = World(lambda device, **options: safe(**options), {}, seed)
    for call in calls:
        if call[0] in ("growth", "backoff", "interval") or call == ("clear",):
            continue
        scale_before = world.scaler.get_scale()
        try:
            result = world.call(*call)
        finally:
            assert 1.0 <= world.scaler.get_scale() <= 2.0**24
        if isinstance(result, tuple) and isinstance(result[0], type):
            kind, text = result
            assert kind in (RuntimeError, AssertionError, PolicyError), (call, text)
            if kind is RuntimeError:
                assert any(words in text for words in allowed), (call, text)
            if kind is PolicyError:
                assert "new_scale" in text
                assert world.scaler.get_scale() == scale_before


@settings(max_examples=100)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=10), st.integers(0, 9))
def test_safe_moves_all_or_nothing(faults, seed):
    """Three optimizers, any of which may overflow: they move in the same steps."""
    torch.manual_seed(seed)
    scaler = safe()
    params = [weight(1.0) for _ in range(3)]
    optimizers = [torch.optim.SGD([p], lr=0.25) for p in params]
    for fault in faults:
        before = [p.item() for p in params]
        for index, (param, optimizer) in enumerate(zip(params, optimizers, strict=True)):
            optimizer.zero_grad()
            bad = fault >> index & 1
            scaler.scale((param * (math.nan if bad else 1.0)).sum()).backward()
        window(scaler, *optimizers)
        moved = [p.item() != b for p, b in zip(params, before, strict=True)]
        assert moved == [fault == 0] * 3
        assert scaler.last_skipped == bool(fault)


def test_leaves_of_nested_losses_are_found():
    from mpcore_compat.torch_amp.groups import _leaves

    a, b, c = weight(1.0), weight(2.0), weight(3.0)
    frozen = torch.ones(1)
    found = _leaves([(a * b).sum(), ((c * frozen).sum(), frozen)])
    assert {id(x) for x in found} == {id(a), id(b), id(c)}
    deep = a * 1.0
    for _ in range(5000):
        deep = deep + 1.0
    assert _leaves(deep) == [a]


# torch_npu's spelling, on tensors of the CPU


def test_npu_stops_everything_after_an_overflow():
    made = torch_amp.npu.GradScaler
    assert two(made(), [1.0], [math.inf]) == (0.5, 1.0)  # the first has moved
    assert two(made(), [math.inf], [1.0]) == (1.0, 1.0)  # torch would move the second
    assert two(made(safe=True), [1.0], [math.inf]) == (1.0, 1.0)


def test_npu_steps_after_unscale():
    """The usual loop of clipping: ``unscale_``, then ``step``; a second unscale_ is refused."""
    scaler, param = torch_amp.npu.GradScaler(init_scale=8.0), weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.5)
    for value, after in ((8.0, 0.5), (math.inf, 0.5), (4.0, 0.0)):
        begin(scaler)
        give(param, value)
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert param.item() == after


def test_npu_with_a_constant_scale():
    scaler, param = torch_amp.npu.GradScaler(init_scale=8.0, dynamic=False), weight(1.0)
    optimizer = torch.optim.SGD([param], lr=0.5)
    begin(scaler)
    for value in (8.0, math.inf):
        give(param, value)
        window(scaler, optimizer)
        assert scaler.get_scale() == 8.0
    assert param.item() == -math.inf  # never skips
    state = scaler.state_dict()
    assert state["dynamic"] is False
    again = torch_amp.npu.GradScaler()
    again.load_state_dict(state)
    assert again.state_dict() == state
    again.load_state_dict(Native("cpu").state_dict())  # torch_npu's raises KeyError
    guarded = torch_amp.npu.GradScaler(init_scale=8.0, dynamic=False, safe=True)
    begin(guarded)
    give(param := weight(1.0), math.inf)
    window(guarded, torch.optim.SGD([param], lr=0.5))
    assert (param.item(), guarded.get_scale()) == (1.0, 8.0)


def test_npu_factors_are_float32():
    """Factors of 1.1 drift from torch's in the last bits, as on the original."""
    scaler = torch_amp.npu.GradScaler(growth_factor=1.1, growth_interval=1)
    rule = scaler._current_rule()
    assert rule.growth_factor == float(np.float32(1.1))
    assert shim._rule("torch", 1.1, 0.5, 1, 1.0).growth_factor == 1.1
