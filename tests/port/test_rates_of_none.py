"""A schedule ends at 0: what is saved then has the rate, too."""

from __future__ import annotations

from .ports import beside

ENDS = """import torch
from torch import nn
made = []
net = nn.Linear(3, 2)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
def trained(steps, saved=None):
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=2)
    if saved is not None:
        opt.load_state_dict(saved["opt"])
        schedule.load_state_dict(saved["schedule"])
    for turn in range(steps):
        opt.zero_grad()
        loss = net(torch.ones(2, 3)).square().sum()
        loss.backward()
        opt.step()
        schedule.step()
        made.append(loss.detach())
        made.append(opt.param_groups[0]["lr"])
    return {"opt": opt.state_dict(), "schedule": schedule.state_dict()}
trained(3, trained(2))
"""


def test_a_run_goes_on_from_a_rate_of_0(tmp_path):
    beside(ENDS, tmp_path)
