"""The shims where optimizers and scripts meet them in other ways than usual."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import OptState

import mpcore as mp
from mpcore_compat.apex import amp
from mpcore_compat.torch_amp import GradScaler


class Asks(torch.optim.SGD):
    """Divides by the scale itself, as fused optimizers of other libraries do."""

    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        self.scaler = grad_scaler
        state = grad_scaler._per_optimizer_states[id(self)]
        if state["stage"] is not OptState.UNSCALED:
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad.div_(grad_scaler._get_scale_async())
        return super().step(closure)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))


def run(optimizer_type, scaler_type, *, unscale, **options):
    model = net()
    optimizer = optimizer_type(model.parameters(), 0.1, momentum=0.9)
    scaler = scaler_type("cpu", init_scale=1024.0, **options)
    generator = torch.Generator().manual_seed(0)
    for number in range(5):
        optimizer.zero_grad()
        x = torch.randn(4, 8, generator=generator)
        loss = model(x).square().mean() * (math.inf if number == 2 else 1.0)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return [*model.parameters()], scaler.get_scale(), getattr(optimizer, "scaler", None) is scaler


@pytest.mark.filterwarnings("ignore:GradScaler is going to stop passing itself:FutureWarning")
@pytest.mark.parametrize("unscale", [False, True])
def test_a_safe_scaler_is_passed_to_optimizers_that_ask_for_it(unscale):
    params, scale, passed = run(Asks, GradScaler, unscale=unscale, safe=True)
    plain, expected, never = run(torch.optim.SGD, torch.amp.GradScaler, unscale=unscale)
    assert passed
    assert not never
    assert scale == expected == 512.0
    assert all(map(torch.equal, params, plain))


def test_what_the_apex_shim_leaves_out_says_what_to_write():
    with pytest.raises(mp.BackendError, match=r"amp\.initialize\(model, optimizer"):
        amp.init(enabled=True)
    with pytest.raises(AttributeError, match=r"amp\.disable_casts\(\)"):
        _ = amp._amp_state.handle.has_cache


def test_the_apex_handle_ends_the_casts_of_o1():
    model = nn.Linear(8, 8)
    model, _ = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), "O1", verbosity=0)
    inner = model.forward
    lowered = []
    weight = model.weight

    def ran(x):
        out = inner(x)
        lowered.append(not torch.equal(out, nn.functional.linear(x, weight, model.bias)))
        return out

    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ran(x)
        with amp.disable_casts():
            ran(x)
        ran(x)
        assert amp._amp_state.handle.is_active()
        amp._amp_state.handle._deactivate()
        assert not amp._amp_state.handle.is_active()
        ran(x)
    assert lowered == [True, False, True, False]


def test_outputs_of_an_autocast_policy_have_torchs_values_in_float32():
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        native = net()(x)
    assert native.dtype == torch.bfloat16
    for policy, dtype in (
        ("torch:autocast_bfloat16", torch.float32),
        ("autocast_bfloat16", torch.float32),
        ("autocast_bfloat16, output=bfloat16", torch.bfloat16),
    ):
        model = net()
        own = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
        with own.autocast():
            out = model(x)
        assert out.dtype == dtype
        assert torch.equal(out.float(), native.float())
