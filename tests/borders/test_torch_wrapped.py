"""Optimizers around optimizers: taken off or stepped as they are, or refused in ``prepare``."""

from __future__ import annotations

import copy
import sys
import types
from collections import defaultdict

import pytest

import mpcore as mp
from mpcore.errors import BackendError, GuardError, OptimizerError

pytestmark = pytest.mark.backend("torch")
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402


class Lookahead(torch.optim.Optimizer):
    """As those around: every second step half the way back; torch's constructor is not called."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        self.state = defaultdict(dict)

    def step(self, closure=None):
        self.optimizer.step()
        self.count += 1
        for group in self.param_groups:
            for param in group["params"]:
                slow = self.state[param].setdefault("slow", param.detach().clone())
                if self.count % 2 == 0:
                    slow.add_(param.detach() - slow, alpha=0.5)
                    param.data.copy_(slow)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def data(step):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))


def train(amp, steps=6):
    for step in range(steps):
        boost = torch.inf if step == 3 else 1.0
        amp.step(lambda x, b: amp.model(x).float().pow(2).mean() * b, data(step), boost)


def test_one_around_another_steps_as_it_does_natively():
    model, native = net(), net()
    amp = mp.prepare(model, Lookahead(torch.optim.Adam(model.parameters())), "float32")
    train(amp)
    plain = Lookahead(torch.optim.Adam(native.parameters()))
    for step in (0, 1, 2, 4, 5):  # the third is skipped
        plain.zero_grad()
        native(data(step)).pow(2).mean().backward()
        plain.step()
    for one, two in zip(model.state_dict().values(), native.state_dict().values(), strict=True):
        assert one.equal(two)
    assert amp.array_bytes()["optimizer"] >= 12 * sum(p.numel() for p in model.parameters())
    with pytest.raises(GuardError):
        amp.optimizer.step()
    with pytest.raises(GuardError):
        amp.optimizer.optimizer.step()


def test_one_around_another_moves_float32_copies():
    amps = []
    for policy in ("model_bfloat16", "mixed_bfloat16"):
        model = net()
        amps.append(mp.prepare(model, Lookahead(torch.optim.SGD(model.parameters(), 0.1)), policy))
        train(amps[-1])
    for one, two in zip(*(amp.weights().values() for amp in amps), strict=True):
        assert abs(one - two).max() < 0.05  # the gradients are of another precision


@pytest.mark.parametrize(
    "policy",
    ["model_bfloat16, master=split", "model_bfloat16, master=kahan", "model_bfloat16, master=none"],
)
def test_schemes_that_it_cannot_step_are_refused_before_anything_changes(policy):
    model = net()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), 0.1))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BackendError, match=r"this Lookahead .* SGD inside it: use master=copy"):
        mp.prepare(model, optimizer, policy)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert mp.prepare(model, optimizer, "mixed_bfloat16").optimizer is optimizer


def test_what_is_no_optimizer_but_holds_one_says_which_to_pass():
    model = net()

    class Engine:
        def __init__(self):
            self.inner = torch.optim.SGD(model.parameters(), 0.1)

    with pytest.raises(OptimizerError, match=r"got .*Engine; pass the SGD inside it, its `.inner`"):
        mp.prepare(model, Engine(), "mixed_bfloat16")


def host_class(monkeypatch):
    """The class of a host's wrapper, in a module of its name; the real one: tests/hosts."""
    module = types.ModuleType("accelerate.optimizer")
    monkeypatch.setitem(sys.modules, "accelerate.optimizer", module)

    class AcceleratedOptimizer(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer, self.scaler = optimizer, None

        @property
        def param_groups(self):
            return self.optimizer.param_groups

        def step(self, closure=None):
            raise AssertionError

    AcceleratedOptimizer.__module__ = module.__name__
    return AcceleratedOptimizer


def test_a_hosts_wrapper_is_taken_off(monkeypatch):
    wrapper = host_class(monkeypatch)
    model, other = net(), net()
    inner = torch.optim.Adam(model.parameters())
    around = wrapper(wrapper(inner))
    amp = mp.prepare(model, around, "model_bfloat16, master=split")
    assert amp.optimizer is inner
    assert mp.prepare(model, around, "model_bfloat16, master=split") is amp
    assert mp.prepare(model, inner, "model_bfloat16, master=split") is amp
    plain = mp.prepare(other, torch.optim.Adam(other.parameters()), amp.policy)
    train(amp)
    train(plain)
    for name, value in plain.weights().items():
        assert (amp.weights()[name] == value).all()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
def test_a_sharded_optimizer_steps_by_layer_and_is_refused_by_model(tmp_path):
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer

    url = f"file://{tmp_path}/group"
    distributed.init_process_group("gloo", init_method=url, rank=0, world_size=1)
    try:
        amps = []
        for make in (
            lambda p: ZeroRedundancyOptimizer(p, optimizer_class=torch.optim.Adam, lr=1e-3),
            torch.optim.Adam,
        ):
            model = net()
            amps.append(mp.prepare(model, make(model.parameters()), "mixed_bfloat16"))
            train(amps[-1])
        for name, value in amps[1].weights().items():
            assert (amps[0].weights()[name] == value).all()
        model = net()
        sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        with pytest.raises(BackendError, match=r"ZeroRedundancyOptimizer .* use by='layer'"):
            mp.prepare(model, sharded, "model_bfloat16")
    finally:
        distributed.destroy_process_group()
