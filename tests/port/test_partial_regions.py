"""``functools.partial`` of autocast regions and scalers that name their device."""

from __future__ import annotations

import pytest

from .ports import beside

REGIONS = """
import torch
from functools import partial
from torch import nn
auto_cast = partial(torch.amp.autocast, device_type="cuda", enabled=False)
make_scaler = partial(torch.amp.GradScaler, init_scale=8.0)
plain = partial(torch.amp.GradScaler, device="cuda", enabled=False)
model = nn.Linear(4, 3)
for p in model.parameters():
    p.data.fill_(0.25)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = make_scaler()
made = [plain().get_scale()]
for i in range(3):
    with auto_cast():
        loss = (model(torch.ones(2, 4)) ** 2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    made.append(loss.detach())
"""


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
def test_regions_and_scalers_that_are_said_to_be_for_cuda(tmp_path):
    found = beside(REGIONS, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
def test_a_region_for_a_cpu(tmp_path):
    beside(REGIONS.replace('device_type="cuda"', 'device_type="cpu"'), tmp_path)


CHOSEN = """
if len(made) > 100:
    kind = partial(torch.amp.GradScaler, device="cuda")
else:
    kind = torch.cuda.amp.GradScaler
scaler = kind(enabled=False)
"""


@pytest.mark.filterwarnings("ignore:.*(CUDA is not available|deprecated)")
def test_a_class_of_scalers_that_is_chosen(tmp_path):
    head, tail = REGIONS.split("scaler = make_scaler()\n")
    made, loop = tail.split("\n", 1)
    beside(head + made + CHOSEN + loop, tmp_path)


MADE = """
def build(kind, **given):
    return kind(**given)
scaler = build(torch.cuda.amp.GradScaler, enabled=False)
"""


@pytest.mark.filterwarnings("ignore:.*(CUDA is not available|deprecated)")
def test_a_class_of_scalers_that_a_function_is_handed(tmp_path):
    head, loop = REGIONS.split("scaler = make_scaler()\n")
    head = "\n".join(line for line in head.splitlines() if "partial(torch.amp.Grad" not in line)
    loop = loop.replace("plain().get_scale()", "scaler.get_scale()")
    beside(head + MADE + loop, tmp_path)
