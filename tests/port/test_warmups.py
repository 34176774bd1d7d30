"""Rates of warmup_scheduler 0.3, as the package gave them; what one process gathers."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Parameter, Tensor

import mpcore_port_runtime as port

from .ports import beside, ported

GAVE = {
    "1.0 cos": (
        "         0.0         0.03333333333         0.06666666667         0.1 "
        "0.1071724973         0.1         0.08040437297         0.05363624865 "
        "0.02686812432         0.007272497295         0.0001"
    ),
    "1.0 step": (
        "         0.0         0.03333333333         0.06666666667         0.1         0.1 "
        "0.1         0.01         0.01         0.001         0.001         0.0001"
    ),
    "1.0 multi": (
        "         0.0         0.03333333333         0.06666666667         0.1         0.1 "
        "0.1         0.05         0.05         0.025         0.025         0.025"
    ),
    "8.0 none": ("0.1 0.3333333333 0.5666666667 0.8 0.8 0.8 0.8 0.8 0.8 0.8 0.8"),
    "8.0 cos": (
        "         0.1         0.3333333333         0.5666666667         0.8 "
        "0.8574302361         0.8         0.6430976771         0.4287651181 "
        "0.214432559         0.0575302361         0.0001"
    ),
    "8.0 exp": (
        "         0.1         0.3333333333         0.5666666667         0.8         0.72 "
        "0.648         0.5832         0.52488         0.472392         0.4251528 "
        "0.38263752"
    ),
}
BEHIND = {
    "none": lambda optimizer: None,
    "cos": lambda optimizer: port.CosineAnnealingLR(optimizer, 6, eta_min=1e-4),
    "step": lambda optimizer: port.StepLR(optimizer, 2, gamma=0.1),
    "exp": lambda optimizer: port.ExponentialLR(optimizer, 0.9),
    "multi": lambda optimizer: port.MultiStepLR(optimizer, [2, 4], gamma=0.5),
}


@pytest.mark.parametrize("which", GAVE)
def test_rates_warm_up_as_the_package_has_them(which):
    multiplier, _, kind = which.partition(" ")
    optimizer = port.SGD([Parameter(Tensor([1.0]), name="w")], lr=0.1)
    after = BEHIND[kind](optimizer)
    scheduler = port.others.GradualWarmupScheduler(optimizer, float(multiplier), 3, after)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(10):
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(rates, [float(one) for one in GAVE[which].split()], rtol=1e-8)


def test_what_a_warm_up_cannot_do_is_said():
    optimizer = port.SGD([Parameter(Tensor([1.0]), name="w")], lr=0.1)
    with pytest.raises(ValueError, match="multiplier"):
        port.others.GradualWarmupScheduler(optimizer, 0.5, 3)
    plateau = port.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(TypeError, match="ReduceLROnPlateau"):
        port.others.GradualWarmupScheduler(optimizer, 1, 3, plateau)


def test_the_package_becomes_the_runtimes():
    script = (
        "import torch\nfrom warmup_scheduler import GradualWarmupScheduler\n"
        "s = GradualWarmupScheduler(opt, multiplier=1, total_epoch=3, after_scheduler=None)\n"
    )
    assert "port.others.GradualWarmupScheduler(opt" in ported(script).text


GATHER = """import torch
import torch.distributed as dist
made = []
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        output = [torch.zeros_like(x) for _ in range(1)]
        if dist.is_initialized():
            dist.all_gather(output, x)
        else:
            output[0].copy_(x)
        return tuple(output)
    @staticmethod
    def backward(ctx, *grads):
        return torch.stack(grads)[0]
w = torch.nn.Linear(3, 2)
for p in w.parameters():
    p.data.fill_(0.5)
opt = torch.optim.SGD(w.parameters(), lr=0.1)
for turn in range(2):
    loss = torch.cat(Gather.apply(w(torch.ones(4, 3))), dim=0).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""


def test_what_is_gathered_of_one_process_is_its_own(tmp_path):
    found = beside(GATHER, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}
    held = [Tensor([0.0, 0.0])]
    port.all_gather(held, Tensor([1.0, 2.0]))
    assert held[0].asnumpy().tolist() == [1.0, 2.0]
