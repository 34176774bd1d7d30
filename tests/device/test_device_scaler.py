"""torch.amp's scaler and the shim of it, side by side on a device: the same calls, equal bits."""

from __future__ import annotations

import random

import pytest
import torch
from nets import batch, loss_of, net
from where import HERE

from mpcore_compat import torch_amp


def ran(kind, seed: int) -> list[object]:
    """Return what a training loop sees: scales, weights, and which steps moved."""
    draw = random.Random(seed)
    model = net().to(HERE)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    interval, seen = draw.choice([1, 2, 5]), []
    scaler = kind(HERE.type, init_scale=2.0 ** draw.randrange(4, 18), growth_interval=interval)
    for number in range(12):
        optimizer.zero_grad()
        boost = float("inf") if draw.random() < 0.25 else 1.0
        with torch.autocast(HERE.type, torch.float16):
            loss = loss_of(model)(*batch(number)) * boost
        scaler.scale(loss).backward()
        if draw.random() < 0.5:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen += [scaler.get_scale(), *(p.detach().cpu() for p in model.parameters())]
    return [*seen, scaler.state_dict()]


@pytest.mark.parametrize("seed", range(8))
def test_the_shim_does_as_torchs_scaler(seed):
    ours, theirs = ran(torch_amp.GradScaler, seed), ran(torch.amp.GradScaler, seed)
    for one, two in zip(ours, theirs, strict=True):
        if isinstance(two, torch.Tensor):
            assert torch.equal(one.nan_to_num(7.5), two.nan_to_num(7.5))
        else:
            assert one == two
