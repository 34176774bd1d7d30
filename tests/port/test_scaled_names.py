"""Scaled losses that have a name, beside torch; ``super()`` of bases that are no networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, NET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = (
    FILLED
    + NET
    + """
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
for turn in range(3):
    opt.zero_grad()
    loss = net(torch.full((2, 3), turn + 1.0)).pow(2).mean()
    STEP
    scaler.step(opt)
    scaler.update()
    SEEN
for p in net.parameters():
    made.append(p.detach().numpy())
made.append(scaler.get_scale())
"""
)
STEPS = {
    "one name": "loss = scaler.scale(loss)\n    loss.backward()",
    "two names": "scaled = scaler.scale(loss)\n    scaled.backward()",
    "apart": "scaled = scaler.scale(loss)\n    made.append(turn)\n    scaled.backward()",
}
SEEN = {"unread": "pass", "read": "made.append(loss.item())"}


@pytest.mark.parametrize("seen", SEEN.values(), ids=list(SEEN))
@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_a_scaled_loss_may_have_a_name(step, seen, tmp_path: Path) -> None:
    beside(SCRIPT.replace("STEP", step).replace("SEEN", seen), tmp_path)


def test_what_nobody_reads_leaves_mindspores_own_step() -> None:
    text = ported(SCRIPT.replace("STEP", STEPS["two names"]).replace("SEEN", "pass")).text
    assert "value_and_grad" in text


ASKED = SCRIPT.replace("STEP", STEPS["one name"]).replace(
    "SEEN", "made += [int(loss.isfinite().all()), float(loss.detach())]"
)


def test_a_scaled_loss_is_asked_as_a_tensor(tmp_path: Path) -> None:
    beside(ASKED, tmp_path)


BASED = """import torch
from .base import StandardSolver
class Solver(StandardSolver):
    def begin(self):
        made.append(super().train())
        made.append(super().eval())
"""


def test_a_base_that_is_no_network_has_its_own_train(tmp_path: Path) -> None:
    text = ported(BASED).text
    assert "port.train(super())" in text
    assert "port.evaluate(super())" in text
