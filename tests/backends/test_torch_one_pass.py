"""The update in one pass of a compiled kernel: bit for bit what the optimizer itself does."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import mpcore as mp
from mpcore.capabilities import compiled
from mpcore.numerics import master_weights as reference
from mpcore.numerics.master_weights import MasterWeights

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mpcore_torch import one_pass, update_proof  # noqa: E402
from mpcore_torch.update_jobs import Job, run  # noqa: E402
from mpcore_torch.update_rules import Rule  # noqa: E402

pytestmark = [
    pytest.mark.backend("torch"),
    pytest.mark.skipif(
        sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))),
        reason="there is no C compiler here: the optimizers move the values themselves",
    ),
]

POLICIES = [
    "model_bfloat16",
    "model_bfloat16, master=copy:away",
    "model_bfloat16, master=copy:truncate",
    "model_bfloat16, master=split",
    "model_bfloat16, master=split:truncate",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:3",
    "model_bfloat16, master=split, optimizer_state=bfloat16",
    "model_bfloat16, master=stochastic, optimizer_state=bfloat16",
    "model_float16",
]
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw, fused": (torch.optim.AdamW, {"fused": True}),
    "adamw, no decay": (torch.optim.AdamW, {"weight_decay": 0.0, "foreach": True}),
    "adam, decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam, small betas": (torch.optim.Adam, {"betas": (0.3, 0.5)}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "sgd, momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd, nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd, fused": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
}


class Side:
    """A prepared model of odd and even shapes, in float32 too where it is normalised."""

    def __init__(self, policy, make, update="compiled", middle=48, **arguments):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(33, middle), nn.Tanh(), nn.LayerNorm(middle), nn.Linear(middle, 7)
        )
        if isinstance(make, tuple):
            kind, options = make
            self.optimizer = kind(self.model.parameters(), **options)
        else:
            self.optimizer = make(self.model)
        self.amp = mp.prepare(self.model, self.optimizer, policy, update=update, **arguments)
        self.number = 0

    def step(self, factor=1.0):
        self.number += 1
        x = torch.randn(9, 33, generator=torch.Generator().manual_seed(self.number))
        return self.amp.step(self.loss, x, torch.full((), factor))

    def loss(self, x, factor):
        first = next(self.model.parameters())
        return self.model(x.to(first.dtype)).float().square().mean() * factor

    def bits(self):
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        slots = [slot for p in params for slot in self.optimizer.state[p].values()]
        beside = self.amp.transaction.master_weights.beside()
        found = [*self.model.parameters(), *beside, *slots]
        there = [item.detach().contiguous() for item in found if item is not None]
        return [item.reshape(-1).view(torch.uint8).numpy().tobytes() for item in there]

    @property
    def said(self):
        return self.amp.updates["optimizer"]


FEW = [(policy, "adamw") for policy in POLICIES] + [(POLICIES[3], name) for name in OPTIMIZERS]
REST = [(policy, name) for policy in POLICIES for name in OPTIMIZERS if (policy, name) not in FEW]


@pytest.mark.parametrize(("policy", "name"), dict.fromkeys(FEW))
def test_every_bit_is_that_of_the_optimizer(policy, name):
    check_bits(policy, name)


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "name"), REST)
def test_every_bit_is_that_of_the_optimizer_in_the_rest(policy, name):
    check_bits(policy, name)


def check_bits(policy, name):
    eager, own = (Side(policy, OPTIMIZERS[name], update) for update in ("eager", "compiled"))
    for index in range(4):
        eager.step()
        own.step()
        assert own.bits() == eager.bits()
        for side in (eager, own):
            side.optimizer.param_groups[0]["lr"] *= 0.5 if index % 2 else 1.3
    # Of a fused kernel of torch, tensors that are no whole vectors are its own.
    wanted = "compiled: 5 of 6 tensors; " if "fused" in name else "compiled: 6 of 6 tensors"
    assert own.said.startswith(wanted)
    assert eager.said == "eager: update='eager'"


@pytest.mark.parametrize("scheme", ["copy:away", "split", "split:truncate", "kahan", "stochastic"])
def test_every_bit_is_that_of_the_reference(scheme):
    rule, numbers = Rule("sgd", (), False, False, True), (0.0, 1.0, 0, 0, 1, 0, -1.0, 0)
    rng = np.random.default_rng(0)
    start = rng.integers(0, 2**32, 5003, np.uint32)
    start[:4] = [0x7F7FFFFF, 0xFF7FC000, 0x00000001, 0x80000000]
    grad = (rng.standard_normal(5003) * 10.0 ** rng.integers(-30, 30, 5003)).astype(np.float32)
    grad[:4] = 0.0
    parsed = MasterWeights.parse(scheme)
    low = torch.empty(5003, dtype=torch.bfloat16)
    high = low.view(torch.int16).numpy().view(np.uint16)
    if parsed.name == "copy":
        values, name = start.view(np.float32).copy(), scheme
        beside = torch.from_numpy(values.copy())
    elif parsed.name == "split":
        name = f"split:{parsed.rounding}"
        high[:], rest, _ = reference.split(start.view(np.float32), parsed.rounding)
        beside = torch.from_numpy(rest.view(np.int16).copy())
        values = reference.join(high, rest, parsed.rounding)
    elif parsed.name == "kahan":
        name = scheme
        high[:], rest = reference.compensate(start.view(np.float32))
        beside = torch.from_numpy(rest.view(np.int16).copy()).view(torch.bfloat16)
        values = reference.restore(high, rest)
    else:
        name, beside = scheme, None
        high[:] = start >> 16
        values = reference.widen(high)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.asarray(values - grad, np.float32)
    key = one_pass.key_of(parsed.seed, 7, 2)
    job = Job(name, rule, low, beside, torch.from_numpy(grad), (), None, 0, key, 0, numbers)
    run([job])
    if parsed.name == "copy":
        assert np.array_equal(high, reference.round_bits(moved, parsed.rounding))
    elif parsed.name == "split":
        wanted, rest, _ = reference.split(moved, parsed.rounding)
        assert np.array_equal(high, wanted)
        assert np.array_equal(beside.numpy().view(np.uint16), rest.view(np.uint16))
    elif parsed.name == "kahan":
        wanted, rest = reference.compensate(moved)
        assert np.array_equal(high, wanted)
        assert np.array_equal(beside.view(torch.int16).numpy().view(np.uint16), rest)
    else:
        noise = reference.noise(parsed.seed, 7, 2, 5003)
        assert np.array_equal(high, reference.round_stochastic(moved, noise))


def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr("mpcore_torch.update_jobs._EACH", 100)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        make, policy = OPTIMIZERS["adamw"], "model_bfloat16, master=stochastic"
        eager, own = (Side(policy, make, u, middle=400) for u in ("eager", "compiled"))
        for _ in range(3):
            eager.step()
            own.step()
    finally:
        torch.set_num_threads(before)
    assert own.bits() == eager.bits()
    assert own.said.startswith("compiled: 6 of 6")


@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[3], POLICIES[5], POLICIES[7]])
def test_a_checkpoint_goes_from_one_path_to_the_other(policy):
    make = OPTIMIZERS["adamw"]
    steady = Side(policy, make, "eager")
    for _ in range(4):
        steady.step()
    for first, second in (("eager", "compiled"), ("compiled", "eager")):
        before = Side(policy, make, first)
        for _ in range(2):
            before.step()
        after = Side(policy, make, second)
        after.model.load_state_dict(before.model.state_dict())
        after.optimizer.load_state_dict(before.optimizer.state_dict())
        after.amp.load_state_dict(before.amp.state_dict())
        after.number = 2
        for _ in range(2):
            after.step()
        assert after.bits() == steady.bits()


def test_a_skipped_step_moves_nothing():
    side = Side("model_float16", OPTIMIZERS["adamw"])
    for _ in range(2):
        assert side.step().stepped
    before = side.bits()
    assert not side.step(float("inf")).stepped
    assert side.bits() == before
    assert side.step().stepped
    assert side.bits() != before


def test_writes_are_counted():
    side = Side("model_bfloat16, master=split", OPTIMIZERS["adamw"])
    side.step()
    param = side.model[0].weight
    slot = next(iter(side.optimizer.state.values()))["exp_avg"]
    before = param._version, slot._version
    side.step()
    assert (param._version, slot._version) > before
    assert slot._version > before[1]
    assert side.said.startswith("compiled: 6")


def _hooked(model):
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def _replaced(model):
    optimizer = torch.optim.AdamW(model.parameters())
    own = optimizer.step
    optimizer.step = lambda closure=None: own(closure)
    return optimizer


def _wrapped(model):
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step = torch.no_grad()(optimizer.step)
    return optimizer


class _Mine(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_hooked, "hooks"),
        (_replaced, "was replaced"),
        (_wrapped, "was replaced"),
        (lambda model: torch.optim.Adam(model.parameters(), amsgrad=True), "amsgrad"),
        (lambda model: torch.optim.SGD(model.parameters(), 0.1, maximize=True), "maximize"),
        (lambda model: torch.optim.Adam(model.parameters(), torch.tensor(1e-3)), "a tensor"),
    ],
)
def test_the_rest_is_left_to_the_optimizer(make, why):
    eager, own = (Side("model_bfloat16, master=split", make, u) for u in ("eager", "compiled"))
    for _ in range(3):
        eager.step()
        own.step()
    assert own.bits() == eager.bits()
    assert why in own.said
    assert "compiled: 0" in own.said or own.said.startswith("eager")


@pytest.mark.parametrize("kind", [_Mine, torch.optim.RMSprop])
def test_other_optimizers_are_refused_or_left_alone(kind, monkeypatch):
    with pytest.raises(mp.BackendError, match=f"{kind.__name__} is not in the kernel"):
        Side("model_bfloat16, master=split", (kind, {}))
    monkeypatch.setattr(one_pass, "_LEAST", 1)
    side = Side("model_bfloat16, master=split", (kind, {}), "auto")
    assert side.step().stepped
    assert side.said == f"eager: {kind.__name__} is not in the kernel"


def test_one_of_two_optimizers_is_moved():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 48), nn.Linear(48, 7))
    pair = {
        "first": torch.optim.RMSprop(model[0].parameters()),
        "rest": torch.optim.SGD(model[1].parameters(), 0.1),
    }
    amp = mp.prepare(model, pair, "model_bfloat16, master=split", update="compiled")
    amp.step(lambda x: model(x).float().square().mean(), torch.randn(9, 33).bfloat16())
    assert amp.updates == {"first": "eager: not in the kernel", "rest": "compiled: 2 of 2 tensors"}


def test_groups_frozen_layers_and_a_scheduler():
    def make(model):
        model[0].bias.requires_grad_(False)
        weights = {"params": [model[0].weight, model[3].weight], "lr": 1e-2, "weight_decay": 0.1}
        rest = {"params": [model[0].bias, *model[2].parameters(), model[3].bias], "amsgrad": True}
        return torch.optim.AdamW([weights, rest], 1e-3, weight_decay=0.0)

    sides = [Side("model_bfloat16, master=kahan", make, u) for u in ("eager", "compiled")]
    for side in sides:
        schedule = torch.optim.lr_scheduler.StepLR(side.optimizer, 1, 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a scheduler warns of a step that it has not seen
            for _ in range(3):
                side.step()
                schedule.step()
    assert sides[0].bits() == sides[1].bits()
    assert sides[1].said.startswith("compiled: 2 of 5 tensors; the others by AdamW itself: AdamW ")


def test_a_kernel_that_rounds_in_another_way_is_not_used(monkeypatch):
    real = update_proof.numbers_of

    def wrong(rule, group, step):
        numbers = list(real(rule, group, step))
        numbers[5] *= 1.001  # eps
        return tuple(numbers)

    monkeypatch.setattr(update_proof, "numbers_of", wrong)
    eager, own = (
        Side("model_bfloat16, master=split", OPTIMIZERS["adamw"], u) for u in ("eager", "compiled")
    )
    for _ in range(3):
        eager.step()
        own.step()
    assert "seen to round in another way" in own.said
    assert own.bits() == eager.bits()


@pytest.fixture
def no_kernel(monkeypatch, tmp_path):
    """As on a machine where nothing was compiled yet, and nothing can be."""
    monkeypatch.setenv("MPCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(one_pass, "_LEAST", 1)
    monkeypatch.setattr(compiled, "_WARNED", set())
    compiled._tried.cache_clear()
    yield tmp_path
    compiled._tried.cache_clear()


def test_without_a_compiler_the_optimizer_steps_itself(no_kernel):
    make = OPTIMIZERS["adamw"]
    with pytest.raises(mp.BackendError, match="got 'compiled': no C compiler"):
        Side("model_bfloat16, master=split", make, "compiled")
    with pytest.warns(mp.MpcoreWarning, match="no C compiler was found") as told:
        sides = [Side("model_bfloat16, master=split", make, u) for u in ("eager", "auto", "auto")]
    assert len(told) == 1
    for side in sides:
        for _ in range(2):
            side.step()
    assert sides[0].bits() == sides[1].bits() == sides[2].bits()
    assert sides[1].said == "eager: no C compiler was found: CC, cc, gcc, clang"


def test_a_compiler_that_fails_is_quoted(no_kernel):
    broken = no_kernel / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: out of sorts' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    with pytest.warns(mp.MpcoreWarning, match="cc failed: cc: out of sorts"):
        side = Side("model_bfloat16, master=split", OPTIMIZERS["adamw"], "auto")
    assert side.step().stepped


SOURCE = Path(one_pass.__file__).with_name("update_kernels.c")


def test_a_library_that_another_user_could_have_put_there_is_not_loaded(no_kernel, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("MPCORE_CACHE", str(no_kernel / "cache"))
    compiled._tried.cache_clear()
    first = compiled._library(SOURCE)
    first.write_bytes(b"no library")
    first.chmod(0o666)
    assert compiled._library(SOURCE) == first
    assert first.stat().st_size > 1000
    assert not os.stat(first).st_mode & 0o022


def test_small_models_are_not_worth_a_compilation():
    side = Side("model_bfloat16, master=split", OPTIMIZERS["adamw"], "auto")
    assert side.said == "eager: 2071 values, less than 1048576"


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("mixed_bfloat16", "there are no float32 master values"),
        ("model_bfloat16, master=none", "there are no float32 master values"),
        ("model_bfloat16, master=split:nearest", "split:nearest is not in the kernel"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_where_it_is_asked_for(policy, why):
    with pytest.raises(mp.BackendError, match=why):
        Side(policy, OPTIMIZERS["adamw"])
    assert why in Side(policy, OPTIMIZERS["adamw"], "auto").said or why.startswith("there")


def test_update_must_be_known():
    with pytest.raises(mp.BackendError, match="`update` must be"):
        Side("model_bfloat16", OPTIMIZERS["adamw"], "fast")
