"""Places of ``.data``, tensors that move before a draw, a class's own ``step``, own objects."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from mindspore import Tensor, nn

import mpcore_port_runtime as port
from mpcore.errors import CheckpointError

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

PLACES = """
import torch
{made}
mask = torch.tensor([True, False, True])
for _ in range(2):
    x.data[mask] = (x + 1.0)[mask]
    x.data[1] -= 2.0
made = [x]
"""
HANDED_IN = """
import torch

class Rows:
    def __init__(self, data):
        self.data = data

def moved(x, mask):
    x.data[mask] = 3.0
    x.data[1] += 1.0
    return x

mask = torch.tensor([True, False, True])
made = [moved(torch.ones(3, 2), mask), moved(Rows(torch.ones(3, 2)), mask).data]
made += [moved(torch.nn.Parameter(torch.ones(3, 2)), mask)]
"""
SETTINGS = """
import torch
from torch import nn

class Run:
    def __init__(self, args, net):
        self.args, self.net = args, net

    def start(self, found, saved):
        self.args.data = found["file"]
        for p in self.net.parameters():
            p.data = p.data * 0.5
        saved["data"] = self.args.data
        return saved

class Args:
    pass

run = Run(Args(), nn.Linear(2, 2))
made = [len(run.start({"file": "rows.yaml"}, {})["data"])]
"""
DRAWN = """
import torch

def start(x, eps, turns, cuda=False):
    for _ in range(2):
        delta = torch.zeros_like(x)
        if cuda:
            delta = delta.cuda()
        if turns == 0:
            return delta.detach()
        delta.uniform_(-eps, eps)
    return delta

found = start(torch.ones(4, 3), 0.1, 1)
made = [float(found.abs().max()) <= 0.1, float(found.abs().sum()) > 0.0]
"""
VIEWED = """
import torch
x = torch.zeros(4, 3)
kept = x.detach()
x.uniform_(1, 2)
made = [float(kept.min()) >= 1.0, float((kept - x).abs().max())]
"""
STEP = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, batch, step=0):
        return {"loss": (self.layer(batch) ** 2).mean(), "acc": batch.mean()}

class Solver:
    def __init__(self, model, loader, amp=False):
        self.model, self.loader, self.amp = model, loader, amp
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
        self.held = {"optimizer": {"module": optimizer}, "scheduler": {"module": plan}}
        if amp:
            self.scaler = torch.cuda.amp.GradScaler()

    def step(self, batch, phase="train"):
        given = {"batch": batch, "step": 1}
        if phase == "train":
            output = self.model(**given)
        else:
            with torch.no_grad():
                output = self.model(**given)
        if phase == "train":
            self.held["optimizer"]["module"].zero_grad()
            if self.amp:
                self.scaler.scale(output["loss"]).backward()
                self.scaler.step(self.held["optimizer"]["module"])
                self.scaler.update()
            else:
                output["loss"].backward()
                self.held["optimizer"]["module"].step()
            self.held["scheduler"]["module"].step(output.get("loss").item())
        return {k: v.item() for k, v in output.items()}

    def epoch(self, phase="train"):
        return [self.step(batch, phase=phase)["loss"] for batch in self.loader]

model = Net()
nn.init.constant_(model.layer.weight, 0.5)
nn.init.constant_(model.layer.bias, 0.25)
solver = Solver(model, [torch.ones(4, 3), torch.ones(4, 3) * 2.0])
made = [*solver.epoch(), *solver.epoch("val"), model.layer.weight, model.layer.bias]
"""
RATE = """
import torch
from torch import nn

net = nn.Linear(2, 2)
groups = [{"params": [net.weight], "lr": 0.25}, {"params": [net.bias]}]
opt = torch.optim.SGD(groups, lr=0.5, momentum=0.75)
plan = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
opt.step()
plan.step()
state = opt.state_dict()
rates = [group["lr"] for group in state["param_groups"]]
places = [place for group in state["param_groups"] for place in group["params"]]
made = [*rates, *places, round(rates[0], 6), state["param_groups"][1]["momentum"]]
opt.load_state_dict(state)
"""


@pytest.mark.parametrize(
    "made", ["x = torch.zeros(3, 2)", "x = torch.nn.Parameter(torch.ones(3, 2))"]
)
def test_a_place_of_data_changes_the_tensor(made: str, tmp_path: Path) -> None:
    beside(PLACES.format(made=made), tmp_path)


def test_what_is_handed_in_is_told_apart_when_it_runs(tmp_path: Path) -> None:
    assert "port.data_of(x)[mask] = 3.0" in beside(HANDED_IN, tmp_path).text


def test_data_of_settings_is_left_as_it_is(tmp_path: Path) -> None:
    found = beside(SETTINGS, tmp_path)
    assert 'self.args.data = found["file"]' in found.text
    assert 'saved["data"] = self.args.data\n' in found.text


def test_a_tensor_that_moves_by_its_own_name_is_drawn_anew(tmp_path: Path) -> None:
    assert "refused" not in beside(DRAWN, tmp_path).text


def test_a_view_of_it_sees_what_is_drawn(tmp_path: Path) -> None:
    beside(VIEWED, tmp_path)


def test_a_step_of_something_else_hands_no_batch_in(tmp_path: Path) -> None:
    assert "refused" not in beside(STEP, tmp_path).text


def test_an_optimizers_state_says_its_rates(tmp_path: Path) -> None:
    beside(RATE, tmp_path)


@dataclass
class Row:
    """A cached row, as scripts keep them."""

    words: list[int]
    values: Tensor
    name: str = ""


class Holder:
    """An object that holds a network."""

    def __init__(self) -> None:
        self.net = nn.Dense(2, 2)


class Counted:
    """An object that says itself how it is pickled."""

    def __getstate__(self) -> dict[str, int]:
        return {"count": 1}


class Closing:
    """An object that acts when it goes."""

    def __del__(self) -> None:
        self.done = True


def _again(value: object) -> object:
    file = io.BytesIO()
    port.save(value, file)
    file.seek(0)
    return port.load(file)


def test_own_objects_are_saved_by_their_fields() -> None:
    rows = [Row([1, 2], Tensor(np.arange(3.0)), "a"), Row([], Tensor(np.ones((2, 2))))]
    found = _again({"rows": rows, "step": 3})
    assert isinstance(found, dict)
    assert found["step"] == 3
    for one, other in zip(found["rows"], rows, strict=True):
        assert isinstance(one, Row)
        assert (one.words, one.name) == (other.words, other.name)
        np.testing.assert_array_equal(one.values.asnumpy(), other.values.asnumpy())


@pytest.mark.parametrize(
    "value",
    [
        Holder(),
        Counted(),
        Closing(),
        io.StringIO(),
        pytest.Mark("a", (), {}, _ispytest=True),
        len,
        Row,
    ],
)
def test_other_objects_are_not(value: object) -> None:
    with pytest.raises(CheckpointError):
        _again([value])


def test_what_holds_itself_is_not() -> None:
    row = Row([], Tensor(np.ones(1)))
    row.words = row  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="holds it again"):
        _again(row)


def test_a_class_that_is_not_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    port.save(Row([], Tensor(np.ones(1))), file)
    file.seek(0)
    monkeypatch.delattr(f"{__name__}.Row")
    with pytest.raises(CheckpointError, match="import it before"):
        port.load(file)


HANDED_DATA = """import torch
class Loop:
    def __init__(self, data):
        self.data = data
def counted(loop, key):
    found = loop.data
    found[key] = 3.0
    return found
def moved(loop):
    found = loop.data
    found += 1
    return found
w = torch.nn.Parameter(torch.ones(3))
counted(w, 1)
moved(w)
logs = counted(Loop({"epoch": 1}), "loss")
made = [*w.tolist(), logs["epoch"], logs["loss"], moved(Loop(4))]
"""


def test_data_of_what_is_handed_in_may_be_a_dictionary_or_a_number(tmp_path: Path) -> None:
    assert "refused" not in beside(HANDED_DATA, tmp_path).text


NONE_IS_HELD = """import torch
def sampled(batch, keys):
    sample = {"input": {}, "valid": None}
    for key in keys:
        sample["input"][key] = batch[key]
    return sample
def shown(sample: dict) -> None:
    print(sample)
made = [sampled({"a": 1.0, "b": 2.0}, ["a"])["input"]["a"]]
"""


def test_none_holds_nothing(tmp_path: Path) -> None:
    assert not beside(NONE_IS_HELD, tmp_path).failures
