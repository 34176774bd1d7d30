"""Names of timm that scripts import and seldom use: what is loaded, and what is said."""

from __future__ import annotations

import json

import mindspore as ms
import pytest
from PIL import Image

import mpcore_port_runtime as port

from .ports import loaded, ported


def _refused(found):
    return [(edit.line, edit.reason) for edit in found.edits if edit.kind == "refused"]


def test_an_optimizer_that_is_not_chosen_lets_a_script_run(tmp_path):
    script = """
import torch
from timm.optim.adamp import AdamP
from timm.optim.lookahead import Lookahead
from timm.optim.rmsprop_tf import RMSpropTF
made = []
def chosen(name, params):
    if name == "adamp":
        return AdamP(params, lr=0.1)
    return torch.optim.SGD(params, lr=0.1)
w = torch.nn.Parameter(torch.ones(2))
made.append(chosen("sgd", [w]).param_groups[0]["lr"])
"""
    found = ported(script)
    assert [line for line, _ in _refused(found)] == [9]
    assert "AdamP is not ported" in _refused(found)[0][1]
    assert loaded(found.text, tmp_path)["made"] == [0.1]


def test_a_star_that_nothing_is_read_of_goes():
    script = """
import torch
from timm.scheduler import *
from scheduler.factory import create_scheduler
from models.some import *
create_scheduler(1)
"""
    found = ported(script)
    assert not _refused(found)
    assert "timm" not in found.text


def test_a_star_stays_refused_where_another_may_give_its_names():
    script = """
import torch
from timm.scheduler import *
from models.some import *
create_scheduler(1)
"""
    assert _refused(ported(script))


def test_a_module_of_timm_by_its_name(tmp_path):
    script = """
import torch
from timm import utils
made = []
meter = utils.AverageMeter()
meter.update(3.0, 2)
made.append(meter.avg)
made += [one.item() for one in utils.accuracy(torch.eye(3), torch.tensor([0, 1, 1]), topk=(1,))]
"""
    found = ported(script)
    assert not _refused(found)
    made = loaded(found.text, tmp_path)["made"]
    assert made == pytest.approx([3.0, 200 / 3])


def test_a_module_of_timm_with_a_name_that_is_not_there_is_refused():
    assert _refused(ported("import torch\nfrom timm import utils\nutils.ModelEmaV3(1)\n"))


def test_the_version_is_said_and_not_insisted_on(tmp_path):
    script = """
import timm
assert timm.__version__ == "0.3.2"  # version check
made = [timm.__version__]
"""
    found = ported(script)
    assert not _refused(found)
    assert loaded(found.text, tmp_path)["made"] == ["1.0.31"]
    assert any("what stands for timm is not timm" in edit.reason for edit in found.edits)


def test_networks_and_tensors_of_timm_have_torchs_methods(tmp_path):
    script = """
import torch
from timm.models.vision_transformer import Mlp, resize_pos_embed
made = []
net = Mlp(4)
net.eval()
places = resize_pos_embed(torch.zeros(1, 5, 2), torch.zeros(1, 5, 2))
made.append(places.detach().sum().item())
made.append(net.training)
made.append([name for name, _ in net.named_parameters()])
"""
    found = ported(script)
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert loaded(found.text, tmp_path)["made"] == [0.0, False, names]


def test_right_answers_by_labels_of_a_second_look(tmp_path):
    (tmp_path / "real.json").write_text(json.dumps([[0], [], [2, 1]]), encoding="utf-8")
    names = [f"val/ILSVRC2012_val_{place:08d}.JPEG" for place in (1, 2, 3)]
    held = port.timm.RealLabelsImagenet(names, tmp_path / "real.json", topk=(1, 2))
    held.add_result(ms.Tensor([[0.1, 0.9, 0.0], [1.0, 0.0, 0.5]], ms.float32))
    held.add_result(ms.Tensor([[0.0, 0.9, 0.5]], ms.float32))
    assert held.get_accuracy() == {1: 50.0, 2: 100.0}
    assert held.get_accuracy(k=1) == 50.0
    with pytest.raises(NotImplementedError, match="real_json"):
        port.timm.RealLabelsImagenet(names)


def test_ways_of_resampling_by_words():
    words = ("bicubic", "lanczos", "hamming", "nearest", "")
    ways = [Image.BICUBIC, Image.LANCZOS, Image.HAMMING, Image.BILINEAR, Image.BILINEAR]
    assert [port.timm.pil_interp(word) for word in words] == ways
