"""Boxes of torchvision, schedules by name, Lion and LAMB give what the packages give.

``traces/packages.json`` holds what ``hosts/package_lives.py`` leaves behind; ``record_packages.py``
says how. apex's kernels were not run: its LAMB is held against its formulas.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .ports import FILLED, compare, loaded, ported

HERE = Path(__file__).parent
SCRIPT = (HERE / "hosts" / "package_lives.py").read_text(encoding="utf-8")
TRACE = json.loads((HERE / "traces" / "packages.json").read_text(encoding="utf-8"))


@pytest.mark.day
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
def test_names_of_packages_give_their_numbers(tmp_path: Path) -> None:
    found = ported(SCRIPT)
    assert not [one for one in found.edits if one.kind == "refused"]
    made = [float(one) for one in loaded(found.text, tmp_path)["made"]]
    np.testing.assert_allclose(made, TRACE, rtol=2e-5, atol=2e-5)


LAMB = """
class FusedLAMB(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-6,
                 weight_decay=0.01, adam_w_mode=True, grad_averaging=True, max_grad_norm=1.0,
                 use_nvlamb=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, eps=eps))
        self.own = bias_correction, adam_w_mode, grad_averaging, max_grad_norm, use_nvlamb
        self.count = 0
    @torch.no_grad()
    def step(self):
        corrects, of_weights, averages, limit, always = self.own
        self.count += 1
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        over = norm / limit if norm > limit else 1.0
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                v = state.setdefault("v", torch.zeros_like(p))
                g = p.grad / over
                if not of_weights:
                    g = g + group["weight_decay"] * p
                m.mul_(one).add_(g * (1 - one if averages else 1.0))
                v.mul_(two).add_(g * g * (1 - two))
                c, d = (1 - one**self.count, 1 - two**self.count) if corrects else (1, 1)
                update = (m / c) / ((v / d).sqrt() + group["eps"])
                if of_weights:
                    update = update + group["weight_decay"] * p
                ratio = group["lr"]
                if (always or group["weight_decay"]) and p.norm() and update.norm():
                    ratio = ratio * float(p.norm() / update.norm())
                p.sub_(ratio * update)
"""
GIVEN = [
    "lr=0.1",
    "lr=0.05, weight_decay=0.0, max_grad_norm=0.2",
    "lr=0.1, adam_w_mode=False, weight_decay=0.2, grad_averaging=False",
    "lr=0.03, bias_correction=False, betas=(0.8, 0.9), use_nvlamb=True, weight_decay=0.0",
]


@pytest.mark.parametrize("given", GIVEN)
def test_lamb_of_apex_by_its_formulas(given: str, tmp_path: Path) -> None:
    script = f"""{FILLED}
from apex.optimizers import FusedLAMB
net = filled(nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.3), nn.Linear(4, 1)))
net[2].bias.data.zero_()
optimizer = FusedLAMB(net.parameters(), eps=1e-2, {given})
x = torch.linspace(-1.0, 2.0, 12).view(4, 3)
for step in range(4):
    loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean() * (3 - step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made += [p.detach().clone() for p in net.parameters()]
"""
    found = ported(script)
    assert not [one for one in found.edits if one.kind == "refused"]
    theirs = script.replace("from apex.optimizers import FusedLAMB\n", LAMB)
    compare(theirs, found.text, tmp_path, rtol=1e-4, atol=1e-5)
