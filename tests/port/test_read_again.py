"""What a script reads again stays as it was set, and what takes from somewhere still takes."""

from __future__ import annotations

import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import load_target

from .ports import TARGET, beside

NPU = load_target("torch_npu")
READ = """import torch
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True
def step():
    assert torch.backends.cuda.matmul.allow_tf32 == True
step()
"""


def test_a_setting_that_is_read_stays_on_an_npu() -> None:
    found = port_text(READ, NPU)
    assert "\ntorch.backends.cuda.matmul.allow_tf32 = True\n" in found.text
    assert "\ntorch.backends.cudnn.benchmark" not in found.text
    exec(found.text.replace("import torch_npu", ""), {})
    kept = [edit for edit in found.edits if edit.line == 2]
    assert [edit.kind for edit in kept] == ["changed"]
    assert "reads" in kept[0].reason


def test_a_setting_that_is_only_set_goes() -> None:
    found = port_text(
        READ.replace("assert torch.backends.cuda.matmul.allow_tf32 == True", "pass"), NPU
    )
    assert "\ntorch.backends.cuda.matmul" not in found.text


POPPED = """import torch
def inner(model, *args, **kwargs):
    device = kwargs.pop("_device", next(model.parameters()).device)
    args = tuple(a.to(device) for a in args)
    return model(*args, **kwargs), sorted(kwargs)
net = torch.nn.Linear(2, 2)
torch.nn.init.constant_(net.weight, 0.5)
torch.nn.init.constant_(net.bias, 0.25)
out, left = inner(net, torch.ones(1, 2), _device="cpu")
made = [out.detach(), left == []]
"""


def test_a_device_that_is_taken_out_of_a_dictionary_is_taken_out(tmp_path) -> None:
    assert beside(POPPED, tmp_path).said.kind != "stops"


DETACHED = """import numpy as np
import torch
class Creator:
    def __call__(self, roi, bbox):
        roi = np.concatenate((roi.detach().cpu().numpy(), bbox), axis=0)
        return roi
made = [Creator()(torch.ones(2, 4), np.zeros((1, 4), "float32"))]
"""


def test_a_tensor_that_is_bound_anew_to_an_array_is_detached(tmp_path) -> None:
    found = beside(DETACHED, tmp_path)
    assert any(edit.kind == "unproven" and edit.line == 5 for edit in found.edits)


KEPT = """from copy import deepcopy
import torch
from other import ModelEMA
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt, self.ema = model, opt, ModelEMA(model)
    def step(self, x):
        self.model(x).sum().backward()
        self.opt.step()
    def after(self):
        ema = self.ema
        return {
            "ema": deepcopy(ema.ema).half(),
            "best": deepcopy(ema.ema).half().state_dict(),
        }
"""


@pytest.mark.parametrize("key", ["ema", "best"])
def test_a_copy_in_half_of_what_another_file_makes_is_named(key: str) -> None:
    found = port_text(KEPT, TARGET)
    assert f'"{key}": port.' in found.text
    assert ".half()" not in found.text
    named = [edit for edit in found.edits if edit.kind == "unproven" and "half" in edit.old]
    assert named
