"""How often the host waits for the device: once a step, for the verdict, as torch's scaler does."""

from __future__ import annotations

import warnings

import pytest
import simulated_device
import torch
from nets import batch, loss_of, net
from where import DEVICE, HERE

import mpcore as mp

POLICIES = [
    "mixed_float16, loss_scale=dynamic(init_scale=256)",
    "mixed_bfloat16",
    "autocast_float16, loss_scale=dynamic(init_scale=256)",
    "model_float16, loss_scale=dynamic(init_scale=256)",
    "model_bfloat16, master=split",
    "model_bfloat16, master=kahan",
    "model_bfloat16, master=stochastic:1",
]


def reads_of(body) -> int:
    """Return how many values the host reads from the device in ``body()``."""
    if DEVICE == simulated_device.NAME:
        count = simulated_device.register().reads
        before = count()
        body()
        return count() - before
    if DEVICE != "cuda":
        pytest.skip(f"not run: nothing counts the reads of {DEVICE}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # says itself that it is a prototype
        try:
            body()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in told)


@pytest.mark.parametrize("call", [{}, {"clip_norm": 1.0}, {"micro_batches": 2}], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_clean_step_waits_once(policy, call):
    model = net().to(HERE)
    amp = mp.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3), policy)
    loss_fn, (x, y) = loss_of(model), batch(0)
    for _ in range(2):
        assert amp.step(loss_fn, x, y, **call).stepped
    assert reads_of(lambda: amp.step(loss_fn, x, y, **call)) == 1


def test_torchs_own_scaler_reads_as_often():
    model = net().to(HERE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler, loss_fn, (x, y) = torch.amp.GradScaler(HERE.type), loss_of(model), batch(0)

    def step():
        optimizer.zero_grad()
        with torch.autocast(HERE.type, torch.float16):
            loss = loss_fn(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(2):
        step()
    assert reads_of(step) == 1


def test_a_loop_of_ones_own_reads_one_value_and_what_it_asks_for():
    model = net().to(HERE)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "mixed_float16")
    loss_fn, (x, y) = loss_of(model), batch(0)

    def step():
        for _ in range(2):
            amp.backward(loss_fn(x, y) / 2)
        return amp.apply()

    step()
    assert reads_of(step) == 1
    assert reads_of(lambda: float(step().loss)) == 2
