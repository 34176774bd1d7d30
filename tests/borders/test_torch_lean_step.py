"""What a torch step keeps between steps to be cheap: an overflow or a patch must not live on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mpcore as mp


def prepared(policy: str) -> tuple[nn.Module, mp.Amp, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), policy)
    return model, amp, torch.randn(4, 4)


@pytest.mark.parametrize(
    "policy", ["float32, loss_scale=dynamic", "model_bfloat16, loss_scale=dynamic"]
)
def test_an_overflow_leaves_no_flag_raised_for_the_next_step(policy):
    model, amp, x = prepared(policy)

    def loss_fn(factor):
        return (model(x).float() * factor).sum()

    found = [amp.step(loss_fn, factor).stepped for factor in (1.0, 1.0, float("inf"), 1.0, 1.0)]
    assert found == [True, True, False, True, True]


def test_a_fault_between_the_check_and_the_look_leaves_no_flag(monkeypatch):
    model, amp, x = prepared("float32, loss_scale=dynamic")
    amp.step(lambda: model(x).sum())
    with monkeypatch.context() as patch:
        patch.setattr(type(amp.transaction), "_all_finite", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            amp.step(lambda: (model(x) * float("inf")).sum())
    assert amp.step(lambda: model(x).sum()).stepped


def test_a_backward_pass_in_the_place_of_torchs_is_called(monkeypatch):
    model, amp, x = prepared("mixed_bfloat16, loss_scale=dynamic")
    calls = []
    for owner in (torch.Tensor, torch.autograd):
        original = owner.backward

        def heard(*args, original=original, **kwargs):
            calls.append(original)
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, "backward", heard)
            assert amp.step(lambda: model(x).float().sum()).stepped
    assert len(calls) == 2
    assert amp.step(lambda: model(x).float().sum()).stepped
    assert len(calls) == 2
