"""What fourteen scripts at first sight showed: scaled losses with names, losses perhaps there."""

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


PERHAPS = (
    FILLED
    + NET
    + """
class Trainer:
    def __init__(self, model, images=None):
        self.images, self.model = images, model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        if self.images is not None:
            self.pearson = nn.MSELoss()
    def train_step(self, x):
        loss = self.model(x).mean()
        if self.images is not None:
            loss = loss + self.pearson(self.model(x), self.images)
        return loss
    def post_train_step(self):
        self.scaler.unscale_(self.optimizer)
    def train(self, data):
        for x in data:
            self.optimizer.zero_grad()
            loss = self.train_step(x)
            self.scaler.scale(loss).backward()
            self.post_train_step()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            made.append(loss.item())
for images in (None, torch.ones(2, 2)):
    Trainer(filled(Net()), images).train([torch.ones(2, 3), torch.full((2, 3), 0.5)])
"""
)


def test_a_loss_that_one_setting_alone_makes_may_not_be_there(tmp_path: Path) -> None:
    beside(PERHAPS, tmp_path)


ARRAYS = """import numpy as np
import torch
mask = (np.arange(3.0).reshape(1, 3) > 0.5).astype("f4")
wide = mask.repeat(4, 0)
made = [torch.from_numpy(wide), torch.ones(1, 2).repeat(3, 1), float(mask.std())]
"""


def test_arrays_are_repeated_as_numpy_does(tmp_path: Path) -> None:
    beside(ARRAYS, tmp_path)
