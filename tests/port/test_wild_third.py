"""What more scripts of others came to: names of old torch, texts in texts, settings of nothing."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from mpcore_port.targets import load_target
from mpcore_port.verify.stand_in import StandIn
from mpcore_port.verify.synthetic import missing
from mpcore_port_runtime import vision

from .ports import beside, loaded, ported, verified

NPU = load_target("torch_npu")

# --- texts ---------------------------------------------------------------------------------------

TEXTS = """import torch
def said(rank, name):
    print(f"on {torch.device(rank)} ({name}: {rank})")
    print(f'on {torch.device(rank)} ({name}: {rank})')
    print(
        f"{name} {torch.device(rank)}"
        f"({rank})"
    )
"""


def test_devices_that_an_f_string_shows_are_written_with_its_other_quote() -> None:
    found = ported(TEXTS, NPU)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert """f"on {torch.device(f'npu:{rank}')} (""" in found.text
    assert """f'on {torch.device(f"npu:{rank}")} (""" in found.text


# --- a switch of gradients by the name that torch no longer has ----------------------------------

SWITCHED = """import torch
from torch import nn
made = []
class Weighed(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
    def forward(self, x, y):
        p = torch.sigmoid(x)
        loss = y * torch.log(p)
        if self.by:
            torch._C.{name}(False)
        weight = (1 - p) ** 2
        if self.by:
            torch._C.{name}(True)
        return -(loss * weight).sum()
net = nn.Linear(2, 1, bias=False)
net.weight.data.copy_(torch.tensor([[0.25, -0.5]]))
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
for by in (True, False):
    criterion = Weighed(by)
    for _ in range(3):
        optimizer.zero_grad()
        loss = criterion(net(torch.tensor([[1.0, 2.0], [-1.0, 0.5]])), torch.ones(2, 1))
        loss.backward()
        optimizer.step()
        made.append(loss.item())
made.append(net.weight)
"""


def test_a_switch_of_gradients_of_torch_c(tmp_path: Path) -> None:
    beside(SWITCHED.replace("{name}", "_set_grad_enabled"), tmp_path)


def test_the_old_name_is_renamed_for_both(tmp_path: Path) -> None:
    old = SWITCHED.replace("{name}", "set_grad_enabled")
    assert "torch._C" not in ported(old).text
    found = ported(old, NPU).text
    assert "torch._C" not in found
    assert found.count("torch.set_grad_enabled(") == 2
    new = SWITCHED.replace("{name}", "_set_grad_enabled")
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    made = [
        loaded(ported(one).text, tmp_path / place)["made"][:-1]
        for one, place in ((old, "old"), (new, "new"))
    ]
    assert made[0] == made[1]


# --- where a random part of a picture is ---------------------------------------------------------

PLACES = """import torch
import torchvision.transforms as T
from torchvision import transforms
x = torch.zeros(3, 9, 12)
part = T.RandomCrop.get_params(x, (4, 5))
whole = transforms.RandomCrop.get_params(x, output_size=(9, 12))
resized = transforms.RandomResizedCrop.get_params(x, scale=(0.5, 0.5), ratio=(1.0, 1.0))
"""


def test_places_of_random_parts(tmp_path: Path) -> None:
    found = ported(PLACES)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    ran = loaded(found.text, tmp_path)
    top, left, height, width = ran["part"]
    assert (height, width) == (4, 5)
    assert 0 <= top <= 5
    assert 0 <= left <= 7
    assert ran["whole"] == (0, 0, 9, 12)
    top, left, height, width = ran["resized"]
    assert height == width == round((0.5 * 9 * 12) ** 0.5)
    assert 0 <= top <= 9 - height
    assert 0 <= left <= 12 - width


def test_places_where_no_part_fits() -> None:
    image = ms.Tensor(np.zeros((3, 4, 30), np.float32))
    assert vision.RandomResizedCrop.get_params(image, (2.0, 2.0), (3 / 4, 4 / 3)) == (0, 12, 4, 5)
    with pytest.raises(ValueError, match="must fit"):
        vision.RandomCrop.get_params(image, (5, 5))


# --- settings that are not there -----------------------------------------------------------------


@pytest.mark.parametrize("made", [missing("cfg"), StandIn("cfg")])
def test_what_is_not_there_has_no_settings_of_its_own(made: object) -> None:
    assert vars(made) == {}


SETTINGS = """import torch
from settings import cfg
class Trainer:
    def __init__(self, net, optimizer, loader, config):
        del config["doc"]
        self.net, self.optimizer, self.loader = net, optimizer, loader
        self.scaler = torch.cuda.amp.GradScaler(**vars(cfg.scaler_words))
    def train(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                loss = torch.nn.functional.cross_entropy(self.net(x.cuda()), y.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


def test_a_step_is_found_behind_settings_that_are_not_there(tmp_path: Path) -> None:
    found = verified(SETTINGS, tmp_path, ("float32",), "torch_npu")
    assert found.passed, found.lines()


# --- tensors beside arrays -----------------------------------------------------------------------

ARRAYS = """import torch
import numpy as np
made = []
hist = torch.tensor([[3, 1, 0], [2, 4, 1], [0, 0, 5]])
made.append(np.diag(hist) / hist.sum(1))
made.append(np.diag(hist) / (hist.sum(1) + hist.sum(0) - np.diag(hist)))
made.append(100 * np.nanmean(np.diag(hist) / hist.sum(1)))
x, a = torch.tensor([1.5, -2.0, 4.0]), np.array([2.0, 3.0, 0.5])
made += [x + a, x - a, x * a, x / a, x % a, abs(x) ** a, a / x]
b = np.array([2, 3, 4])
made += [hist.sum(1) // b, hist.sum(1) / b, hist[0] + b, b / hist.sum(1)]
made += [x.dtype == torch.float32, (x * a).dtype == torch.float64]
"""


def test_operators_of_tensors_beside_arrays(tmp_path: Path) -> None:
    beside(ARRAYS, tmp_path)


# --- what optimizers counted ---------------------------------------------------------------------

COUNTED = """import torch
class Trainer:
    def __init__(self, net, opt_G):
        self.opt_G, self.seen = opt_G, 0
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
    def skipped(self):
        self.count = self.scheduler._step_count
        return self.seen == self.opt_G._step_count
"""


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_steps_that_an_optimizer_no_longer_counts_are_named(target: str) -> None:
    found = ported(COUNTED, load_target(target))
    said = [edit.line for edit in found.edits if "torches of before" in edit.reason]
    assert said == [9]
