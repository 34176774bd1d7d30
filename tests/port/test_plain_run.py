"""What the README's command of a repository comes to: names there that need not stop a port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore_port.targets import load_target

from .ports import NUMBERS, beside, loaded, ported
from .record_kaldi import CASES, KALDI, sound

if TYPE_CHECKING:
    from pathlib import Path

# --- devices and processes -----------------------------------------------------------------------

CHOOSES = """
import torch
made = []
major, minor = torch.cuda.get_device_capability()
low = torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float16
has_float8 = torch.cuda.get_device_capability(0) >= (8, 9)
about = torch.cuda.get_device_properties(0)
made += [major, low, has_float8, about.major, about.minor]
"""


def test_a_branch_by_the_capability_of_a_device_is_that_of_one_with_bfloat16(
    tmp_path: Path,
) -> None:
    found = ported(CHOOSES)
    assert found.said.kind == "runs"
    assert loaded(found.text, tmp_path)["made"] == [8, ms.bfloat16, False, 8, 0]
    assert "no such number" in "".join(edit.effect for edit in found.edits)


PROCESSES = """
import torch
import torch.multiprocessing as mp

def work(number, queue):
    queue.put(number + 3)

def alone(number, made):
    made.append(number)

made = []
if __name__ == "script":
    mp.set_start_method("fork", force=True)
    queue = mp.get_context("fork").SimpleQueue()
    children = [mp.Process(target=work, args=(n, queue)) for n in range(2)]
    for child in children:
        child.start()
    made += sorted(queue.get() for _ in children)
    for child in children:
        child.join()
mp.start_processes(alone, args=(made,), nprocs=1, start_method="fork")
"""


def test_processes_of_a_script_are_pythons(tmp_path: Path) -> None:
    found = ported(PROCESSES.replace('if __name__ == "script":', "if True:"))
    assert found.said.kind == "runs"
    assert loaded(found.text, tmp_path)["made"] == [3, 4, 0]


# --- attention and Fabric ------------------------------------------------------------------------

ATTENDS = f"""
import torch
import torch.nn.functional as F
{NUMBERS}
def attend(*args, **settings):
    return F.scaled_dot_product_attention(*args, **settings)

x, few = numbers(2, 4, 3, 5), numbers(2, 2, 3, 5)
made = [attend(x, x, x * 2, scale=0.3)]
made.append(attend(x, x, x, None, is_causal=True))
made.append(F.scaled_dot_product_attention(x, few, few + 1, enable_gqa=True))
"""


def test_attention_of_starred_arguments_and_of_shared_heads(tmp_path: Path) -> None:
    beside(ATTENDS, tmp_path)


ON_ONE_DEVICE = """
import lightning as L
from lightning.fabric.strategies import FSDPStrategy
from lightning.fabric.plugins import BitsandbytesPrecision
made = []
plugins = None
fabric = L.Fabric(devices=1, plugins=plugins, precision="bf16-mixed")
if isinstance(fabric.strategy, FSDPStrategy):
    made.append("several")
if isinstance(fabric.strategy.precision, BitsandbytesPrecision):
    made.append("quantized")
made.append(fabric.strategy.precision.precision)
"""


def test_a_fabric_is_asked_for_its_strategy(tmp_path: Path) -> None:
    found = ported(ON_ONE_DEVICE)
    assert found.said.kind == "runs"
    assert loaded(found.text, tmp_path)["made"] == ["bf16-mixed"]
    with pytest.raises(NotImplementedError, match="FSDPStrategy"):
        port.fabric.FSDPStrategy()
    with pytest.raises(NotImplementedError, match="cluster"):
        port.fabric.Fabric().strategy.cluster_environment  # noqa: B018
    with pytest.raises(NotImplementedError, match="plugins"):
        port.fabric.Fabric(plugins=["one"])


# --- networks ------------------------------------------------------------------------------------

NORMS = f"""
import torch
from torch import nn
import torch.nn.functional as F
{NUMBERS}
class Channels(nn.LayerNorm):
    def __init__(self, normalized_shape, eps=1e-2):
        super().__init__(normalized_shape, eps=eps)
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)

class Kept(nn.LayerNorm):
    def forward(self, x):
        kind = x.dtype
        return super().forward(x.float()).type(kind)

class Bare(nn.LayerNorm):
    def __init__(self, dim):
        super().__init__([dim, dim], elementwise_affine=False)

def make(norm_layer, *given, **named):
    return norm_layer(*given, **named)

x = numbers(2, 3, 4, 4) * 0.01
made = [make(Channels, 3)(x), make(Kept, 4)(x), make(Kept, (4, 4), eps=1e-3)(x), make(Bare, 4)(x)]
made.append(list(make(Kept, 4).normalized_shape))
layer = make(Channels, 3)
layer.weight.data.fill_(2.0)
made += [layer(x), layer.eps, [p.numel() for p in layer.parameters()]]
made.append(len(layer.state_dict()))
"""


def test_a_norm_that_a_script_derives_takes_torchs_arguments(tmp_path: Path) -> None:
    beside(NORMS, tmp_path)


DERIVED = f"""
import torch
from torch import nn
{NUMBERS}
class Line(nn.Linear):
    pass
class Lines(nn.Linear):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
class Whole(nn.GroupNorm):
    def __init__(self, num_channels, **kwargs):
        super().__init__(1, num_channels, **kwargs)
class Shares(nn.Softmax):
    pass
class Largest(nn.MaxPool2d):
    pass
class Mean(nn.AvgPool2d):
    pass
class Lost(nn.Dropout):
    pass
class Batch(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) * 2
class Batches(nn.BatchNorm1d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

def make(layer, *args, **kwargs):
    return layer(*args, **kwargs)

def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net

x, rows = numbers(2, 4, 6, 6), numbers(3, 4)
made = [filled(make(Line, 4, 2, bias=False))(rows)]
made.append(filled(make(Lines, in_features=4, out_features=3))(rows))
made += [filled(make(Whole, 4, eps=1e-2))(x), make(Whole, 4, affine=False)(x)]
made += [make(Shares, dim=1)(x), make(Shares)(rows)]
made += [make(Largest, 2)(x), make(Largest, 3, stride=2, padding=1)(x)]
made += [make(Mean, 2)(x), make(Mean, 3, 1)(x)]
made.append(make(Lost, p=0.5, inplace=True).eval()(rows))
made.append(float((make(Lost, 0.9).train()(torch.ones(400)) == 0).float().mean()) > 0.7)
pairs = [(filled(make(Batch, 4, momentum=0.3, eps=1e-2)), x), (make(Batches, 4, 1e-2, 0.2), rows)]
for norm, seen in pairs:
    made.append(norm.train()(seen))
    made.append(norm.eval()(seen * 2))
    made += [norm.running_mean, norm.running_var]
    made.append(isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)))
"""


@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_layers_that_a_script_derives_take_torchs_arguments(tmp_path: Path) -> None:
    found = beside(DERIVED, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


# --- packages ------------------------------------------------------------------------------------

ASKED_OF = """
import torch
from torch import nn
from natten import NeighborhoodAttention2D
from spconv.pytorch import SparseModule
made = [isinstance(m, (NeighborhoodAttention2D, nn.Linear)) for m in [nn.Linear(2, 2), nn.ReLU()]]
made.append(issubclass(nn.Linear, SparseModule))
"""


def test_nothing_is_an_instance_of_a_class_that_is_not_there(tmp_path: Path) -> None:
    assert loaded(ported(ASKED_OF).text, tmp_path)["made"] == [True, False, False]


def test_of_a_package_that_is_there_in_part_no_question_is_answered(tmp_path: Path) -> None:
    script = "from transformers import PreTrainedModel\nmade = [isinstance(3, PreTrainedModel)]\n"
    with pytest.raises(NotImplementedError, match="PreTrainedModel"):
        loaded(ported(script).text, tmp_path)


CHAINED = """
import torch

def numbered(offset):
    return (
        torch.cat(
            [
                torch.tensor([i] * o)
                for i, o in enumerate(offset)
            ],
            dim=0,
        )
        .long()
        .to(offset.device)
    )
made = [numbered(torch.tensor([2, 3]))]
made.append(
    (
        made[0]
        .float()
        .cpu()
    )
)
"""


def test_a_chain_over_several_lines_keeps_its_brackets(tmp_path: Path) -> None:
    found = beside(CHAINED, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


# --- sounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(len(CASES)))
def test_features_are_kaldis_as_torchaudio_has_them(place: int) -> None:
    name, settings = CASES[place]
    shape, wanted = json.loads(KALDI.read_text("utf-8"))[place]
    found = getattr(port.kaldi, name)(ms.Tensor(sound()), **settings).asnumpy()
    assert list(found.shape) == shape
    np.testing.assert_allclose(found[::3].reshape(-1)[::5], wanted, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"num_mels": 3}, TypeError),
        ({"num_mel_bins": 3}, AssertionError),
        ({"frame_length": 900.0}, AssertionError),
        ({"frame_length": 2.1, "round_to_power_of_two": False}, AssertionError),
        ({"vtln_warp": 1.1, "vtln_low": 10.0}, AssertionError),
        ({"window_type": "other"}, ValueError),
    ],
)
def test_features_that_kaldi_has_not_raise(settings: dict[str, Any], kind: type) -> None:
    with pytest.raises(kind):
        port.kaldi.fbank(ms.Tensor(sound()), **settings)


def test_dither_moves_a_sound() -> None:
    still, moved = (port.kaldi.fbank(ms.Tensor(sound()), dither=by) for by in (0.0, 0.1))
    assert still.shape == moved.shape
    assert not np.allclose(still.asnumpy(), moved.asnumpy())


# --- an NPU --------------------------------------------------------------------------------------

TOLD = """
import torch
from timm.data import Mixup, create_dataset, create_loader
from timm.data.loader import PrefetchLoader
from timm.utils import NativeScaler
from timm import utils

def main(args):
    loader = create_loader(
        create_dataset("", root=args.data),
        input_size=(3, 224, 224),
        batch_size=8,
    )
    other = PrefetchLoader(loader, fp16=True)
    scalers = [NativeScaler(), utils.NativeScaler(), NativeScaler(device="cuda")]
    mixup = Mixup(num_classes=4)
    last = create_loader(*args.all)
    mine = create_loader(loader, (3, 4, 4), 8, device=torch.device(args.device))
    return other, scalers, last, mine
"""


def test_what_of_timm_chooses_cuda_is_told_the_device() -> None:
    found = ported(TOLD, load_target("torch_npu"))
    assert "loader = _port_timm_loader(\n        create_loader, create_dataset" in found.text
    assert "_port_timm_loader(PrefetchLoader, loader, fp16=True)" in found.text
    assert "mixup = _port_timm_mixup(Mixup(num_classes=4))" in found.text
    assert (
        "_port_timm_scaler(NativeScaler()), _port_timm_scaler(utils.NativeScaler())" in found.text
    )
    assert found.text.count('NativeScaler(device="npu")') == 1
    assert "create_loader(*args.all)" in found.text
    assert "8, device=torch.device(args.device))" in found.text
    said = {e.line: e.effect for e in found.edits if e.rule == "timm"}
    assert sorted(said) == [9, 14, 15, 16]
    assert "transfer_to_npu" in said[9]
    assert "transfer_to_npu" in said[16]
    assert "switches itself off" in said[15]
