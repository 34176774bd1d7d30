"""Hosts that bring a GradScaler of their own get ``amp.grad_scaler`` for it."""

from __future__ import annotations

from typing import Any

import host_run as run
import pytest
import torch

import mpcore as mp


def with_timm(timm: Any, policy: str, clip: float | None) -> dict[str, Any]:
    model = run.network()
    optimizer = run.optimizer_of(model)
    amp = mp.prepare(model, optimizer, run.policy_of(policy))
    schedule = amp.scheduler(run.schedule_of(optimizer))
    scaler = timm.utils.NativeScaler(device=run.DEVICE.type)
    scaler._scaler = amp.grad_scaler  # the one line
    for x, y in run.batches():
        optimizer.zero_grad()
        with amp.autocast():
            loss = run.loss_of(model, x, y)
        scaler(loss, optimizer, clip_grad=clip, parameters=list(model.parameters()))
        schedule.step()
    return run.end_of(amp, schedule.get_last_lr()[0])


@pytest.mark.parametrize("policy", run.POLICIES)
def test_timms_scaler_ends_where_steps_end(timm: Any, policy: str) -> None:
    run.assert_same(run.own_run(policy, run.batches()), with_timm(timm, policy, None))


@pytest.mark.parametrize("policy", ["mixed_float16", "autocast_float16"])
def test_timms_clipping_is_of_true_gradients(timm: Any, policy: str) -> None:
    ours = run.own_run(policy, run.batches(), clip=0.5)
    run.assert_same(ours, with_timm(timm, policy, 0.5))


@pytest.mark.parametrize("policy", ["mixed_float16", "model_float16"])
def test_lightnings_own_mixed_precision_takes_it(policy: str) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: make hosts")
    from lightning.fabric.plugins.precision.amp import MixedPrecision

    model = run.network()
    optimizer = run.optimizer_of(model)
    amp = mp.prepare(model, optimizer, run.policy_of(policy))
    schedule = amp.scheduler(run.schedule_of(optimizer))
    native = MixedPrecision("16-mixed", run.DEVICE.type, amp.grad_scaler)
    for x, y in run.batches():
        loss = run.loss_of(model, x, y)
        native.backward(loss, model)
        native.unscale_gradients(optimizer)
        native.optimizer_step(optimizer)
        schedule.step()
    found = run.end_of(amp, schedule.get_last_lr()[0])
    assert isinstance(amp.grad_scaler, torch.amp.GradScaler)
    run.assert_same(run.own_run(policy, run.batches()), found)
