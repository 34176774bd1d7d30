"""What scripts ask a scaler for by a name of torch's own: its scale, as a tensor."""

from __future__ import annotations

from .ports import beside, ported

HEAD = """import torch
from torch import nn
net = nn.Linear(2, 1)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=0.25, growth_interval=2)
made = [scaler._scale is None]
"""
TURNS = """
for turn in range(4):
    loss = net(torch.ones(3, 2) * turn).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    made.append(scaler._scale.item())
    if scaler._scale < 0.75:
        scaler._scale = torch.tensor(0.75).to(scaler._scale)
    made.append(scaler.get_scale())
made.append(net.weight.detach())
"""


def test_the_scale_is_read_and_set_by_its_own_name(tmp_path):
    beside(HEAD + TURNS, tmp_path)


IN_AUTOCAST = """import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = GradScaler()
for turn in range(4):
    x = torch.ones(3, 4)
    with autocast():
        loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_a_loop_that_asks_so_keeps_its_scaler():
    assert "prepare(" in ported(IN_AUTOCAST).text
    found = ported(IN_AUTOCAST + '    print(f"scale {scaler._scale.item()}")\n')
    assert "prepare(" not in found.text
    assert "scaler = port.GradScaler(" in found.text
