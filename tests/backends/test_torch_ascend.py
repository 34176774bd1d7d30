"""The emulated saturating device in torch, and the detectors of devices that are not here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpcore as mp
from mpcore.numerics.overflow import saturate as reference
from mpcore.step.transaction import StepOptions

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from mpcore_torch import TorchBackend, emulated_ascend  # noqa: E402
from mpcore_torch.ascend import saturate  # noqa: E402
from mpcore_torch.overflow import (  # noqa: E402
    NpuDetector,
    ValueDetector,
    detector_for,
    npu_utils,
    overflow_kind,
)

pytestmark = pytest.mark.backend("torch")

LOW = ["mixed_float16", "autocast_float16", "model_float16"]


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batch():
    g = torch.Generator().manual_seed(0)
    return torch.randn(16, 8, generator=g), torch.randint(4, (16,), generator=g)


def ready(policy="mixed_float16", **options):
    model = net()
    rule = mp.LossScale.static(64.0)
    policy = mp.Policy.parse(policy).with_loss_scale(rule)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    amp = mp.prepare(model, optimizer, policy, **options)
    return amp, lambda x, y: functional.cross_entropy(model(x), y)


# --- the rule


@given(st.lists(st.floats(width=32), max_size=30))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rule_is_that_of_the_core(dtype, values):
    with np.errstate(over="ignore"):
        held = torch.tensor(np.array(values, np.float32)).to(getattr(torch, dtype))
    kept, overflowed = saturate(held)
    expected, flag = reference(held.float().numpy(), dtype)
    np.testing.assert_array_equal(kept.float().numpy(), expected)
    assert (kept.dtype, overflowed) == (held.dtype, flag)


OPERATIONS = {
    "cast": lambda: torch.full((3,), 1e6).half(),
    "product": lambda: torch.full((3,), 1e20) * torch.full((3,), 1e20),
    "invalid": lambda: torch.full((3,), -1.0).sqrt(),
    "in place": lambda: torch.full((3,), 6e4, dtype=torch.float16).add_(6e4),
    "foreach in place": lambda: torch._foreach_mul_([torch.full((3,), 1e30)], 1e30),
    "foreach": lambda: torch._foreach_mul([torch.full((3,), 1e30)], 1e30),
    "out": lambda: torch.mul(torch.full((3,), 1e30), 1e30, out=torch.zeros(3)),
    "two results": lambda: torch.var_mean(torch.full((3,), 3e38) * torch.tensor([1, -1, 1])),
    "constant": lambda: torch.full((3,), float("-inf")),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_kind_of_operation_saturates_and_raises_the_flag(name):
    with emulated_ascend() as device:
        result = OPERATIONS[name]()
        assert device.overflowed
        for tensor in result if isinstance(result, list | tuple) else [result]:
            assert tensor is None or torch.isfinite(tensor).all()
        device.clear()
        torch.ones(3).half() * 2
        assert not device.overflowed


def test_new_memory_and_views_raise_no_flag():
    for _ in range(20):
        waste = torch.full((1000,), float("nan"))
        del waste  # its memory is what the next empty tensor gets
        with emulated_ascend() as device:
            torch.empty(1000)
            torch.empty_like(torch.ones(1000))
            torch.ones(4).new_empty(1000).view(10, 100).t()
            assert not device.overflowed


def test_backward_pass_saturates():
    with emulated_ascend() as device:
        weight = torch.full((4,), 1e-3, dtype=torch.float16, requires_grad=True)
        loss = (weight * 6e4).float().sum() * 1e3
        assert not device.overflowed
        loss.backward()
        assert device.overflowed
        assert torch.isfinite(weight.grad).all()


def test_outside_the_block_nothing_saturates():
    with emulated_ascend():
        pass
    assert torch.isinf(torch.full((1,), 1e6).half()).all()


# --- steps


@pytest.mark.parametrize("policy", LOW)
def test_overflow_is_missed_by_values_and_seen_by_the_register(policy):
    x, y = batch()
    with emulated_ascend():
        blind, loss_fn = ready(policy, detector="values")
        assert blind.step(loss_fn, x * 1e6, y).stepped
        for asked in ("auto", "status_register"):
            seeing, loss_fn = ready(policy, detector=asked)
            assert seeing.step(loss_fn, x, y).stepped
            assert not seeing.step(loss_fn, x * 1e6, y).stepped
            assert seeing.step(loss_fn, x, y).stepped


def test_judging_is_not_watched():
    """The norm of finite gradients may leave float32: that is no overflow of the device."""
    model = nn.Linear(4, 2, bias=False)
    with emulated_ascend() as device:
        amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 1e-30), "float32")
        loss = lambda: model(torch.ones(1, 4)).sum() * 1e30  # noqa: E731
        for call in ({}, {"clip_norm": 1.0}):
            result = amp.step(loss, **call)
            assert result.stepped
        assert not device.overflowed


def test_overflow_before_the_step_and_in_evaluation_does_not_count():
    x, y = batch()
    with emulated_ascend() as device:
        amp, loss_fn = ready()
        amp.model.eval()
        with torch.no_grad():
            amp.model(x * 1e6)
        amp.model.train()
        assert device.overflowed
        assert amp.step(loss_fn, x, y).stepped
        amp.model.eval()
        with torch.no_grad():
            amp.model(x * 1e6)
        amp.model.train()
        with amp.autocast():
            loss = loss_fn(x, y)
        amp.backward(loss)
        assert amp.apply().stepped


def test_overflow_in_the_first_of_several_micro_batches_counts():
    x, y = batch()
    x[0] *= 1e6
    with emulated_ascend():
        amp, loss_fn = ready()
        assert not amp.step(loss_fn, x, y, micro_batches=4).stepped
        for rows in (slice(0, 8), slice(8, 16)):
            amp.backward(loss_fn(x[rows], y[rows]) / 2)
        assert not amp.apply().stepped
        assert amp.step(loss_fn, *batch(), micro_batches=4).stepped


def test_discarded_step_clears_the_register():
    x, y = batch()
    with emulated_ascend() as device:
        amp, loss_fn = ready()
        amp.backward(loss_fn(x * 1e6, y))
        assert device.overflowed
        amp.abort_step()
        assert not device.overflowed


def test_capabilities_say_how_overflow_shows():
    assert TorchBackend().capabilities().overflow == "values"
    with emulated_ascend():
        assert TorchBackend().capabilities(net()).overflow == "status_register"


def test_register_that_is_not_there_is_refused():
    with pytest.raises(mp.PolicyError, match="`detector` must be one of 'auto', 'values'"):
        ready(detector="status_register")


# --- Ascend itself, which is not here


def test_npu_without_its_package_is_a_clear_error():
    assert "torch_npu" not in sys.modules
    for call in (npu_utils, lambda: NpuDetector(), lambda: overflow_kind("npu")):
        with pytest.raises(mp.BackendMissingError, match=r"needs torch_npu\.npu\.utils .*install"):
            call()


class _Utils(ModuleType):
    """Stands for torch_npu.npu.utils: the three functions that the detector calls."""

    def __init__(self, infnan):
        super().__init__("torch_npu.npu.utils")
        self.flag, self.infnan, self.log = False, infnan, []

    def is_support_inf_nan(self):
        return self.infnan

    def get_npu_overflow_flag(self):
        self.log.append("get")
        return self.flag

    def clear_npu_overflow_flag(self):
        self.log.append("clear")
        self.flag = False


@pytest.fixture
def utils(monkeypatch, request):
    made = _Utils(getattr(request, "param", False))
    for name in ("torch_npu", "torch_npu.npu"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch_npu.npu.utils", made)
    return made


def test_npu_register_is_read_between_two_clears(utils):
    detector = NpuDetector()
    detector.begin()
    assert detector.read({})
    assert detector.reduce((True, False), True) == (True, False)
    detector.clear()
    utils.flag = True
    detector.begin()
    assert detector.read({})  # what was there before does not count
    utils.flag = True
    assert not detector.read({})
    assert detector.reduce((True, True), False) == (False, False)
    detector.clear()
    assert utils.log == ["clear", "get", "clear", "clear", "get", "get", "clear"]
    assert (detector.kind, detector.mode, detector.localises) == (
        "status_register",
        "saturation",
        False,
    )


@pytest.mark.parametrize(
    ("utils", "kind"), [(False, "status_register"), (True, "values")], indirect=["utils"]
)
def test_mode_of_the_npu_chooses_the_detector(utils, kind):
    assert overflow_kind("npu") == kind

    class Npu:
        """Stands for a model on a device that this torch cannot name."""

        def parameters(self):
            yield SimpleNamespace(device=SimpleNamespace(type="npu"))

    assert detector_for(StepOptions(), Npu()).kind == kind
    assert type(detector_for(StepOptions(detector="values"), Npu())) is ValueDetector


def test_old_torch_npu_is_a_clear_error(utils):
    utils.__class__ = ModuleType
    utils.is_support_inf_nan = bool
    with pytest.raises(mp.BackendMissingError, match="must have get_npu_overflow_flag, clear_npu"):
        NpuDetector()
