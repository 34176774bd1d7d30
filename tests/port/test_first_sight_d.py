"""What scripts at first sight asked for: borders of files, of checkpoints and of pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore_port.engine import port_text, port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

PICTURES = """import torch
from torchvision.transforms import Normalize
made = []
net = torch.nn.Conv2d(3, 3, 1)
torch.nn.init.constant_(net.weight, 0.3)
torch.nn.init.constant_(net.bias, 0.1)
norm = Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
x = torch.sin(torch.arange(96.0)).view(2, 3, 4, 4)
loss = norm(net(x)).pow(2).mean()
loss.backward()
made += [loss.detach(), net.weight.grad, norm(x)]
"""


def test_gradients_go_through_pictures_that_are_normalized(tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="its pictures are compared with")
    beside(PICTURES, tmp_path)


def test_gradients_go_through_normalize() -> None:
    import mindspore as ms

    held = ms.Tensor(np.ones((3, 2, 2), np.float32))
    norm = port.vision.Normalize((0.5,) * 3, (0.25,) * 3)
    found = ms.grad(lambda x: norm(x * 2.0).sum())(held)
    np.testing.assert_allclose(found.asnumpy(), 8.0)


PARTS = """import torch
try:
    from apex.normalization import FusedRMSNorm as RMSNorm
except ImportError:
    class RMSNorm(torch.nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(dim))
        def forward(self, x):
            return x * self.weight
"""
USER = """import torch
from .parts import RMSNorm
net = torch.nn.Sequential(torch.nn.Linear(4, 4), RMSNorm(4))
"""


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_what_a_file_makes_without_a_package_is_what_others_import(
    target: str, tmp_path: Path
) -> None:
    for name, text in (("__init__", ""), ("parts", PARTS), ("user", USER)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    done = port_tree(walk(tmp_path), load_target(target), Options()).files
    texts = {one.source.path: one.text for one in done}
    assert "from .parts import RMSNorm" in texts["user.py"]
    assert not [edit for one in done for edit in one.edits if edit.kind == "refused"]
    if target == "mindspore":
        assert "raise ModuleNotFoundError" in texts["parts.py"]


NODES = """import torch
class Node(dict):
    def __getattr__(self, name):
        return self[name]
"""


def test_settings_come_back_with_their_entries_as_attributes(tmp_path: Path) -> None:
    made: dict[str, type[dict[str, object]]] = {}
    exec(NODES, made)
    port.save({"config": made["Node"](LEVEL="O1"), "plain": {"a": 1}}, tmp_path / "a.pt")
    found = port.load(tmp_path / "a.pt")
    assert found["config"].LEVEL == found["config"]["LEVEL"] == "O1"
    assert type(found["plain"]) is dict
    with pytest.raises(AttributeError, match="no entry 'LEVELS'"):
        _ = found["config"].LEVELS


ANNOTATED = """from typing import Optional, Union
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
class Trainer:
    model: Union[FSDP, torch.nn.Module] = 2
    other: Optional[FSDP] = None
    def run(self, given: FSDP) -> Union[FSDP, int]:
        held: FSDP = given
        return held
made = [Trainer().run(3)]
"""


def test_annotations_of_what_is_refused_refuse_nothing(tmp_path: Path) -> None:
    assert not [one for one in beside(ANNOTATED, tmp_path).edits if one.kind == "refused"]


CHOSEN = """import contextlib
import torch
made = []
for name in ("tf32", "fp16"):
    region = {
        "bf16": torch.cuda.amp.autocast(dtype=torch.bfloat16),
        "fp16": contextlib.nullcontext(),
        "tf32": contextlib.nullcontext(),
    }[name]
    with region:
        made.append(torch.ones(2) * 2)
"""


@pytest.mark.filterwarnings("ignore")  # torch's own, of CUDA that is not there
def test_regions_that_nobody_enters_raise_nothing(tmp_path: Path) -> None:
    beside(CHOSEN, tmp_path)


def test_the_version_of_nccl_is_printed_as_none() -> None:
    script = "import torch\nprint('torch', torch.cuda.nccl.version())\n"

    found = port_text(script, load_target("torch_npu"), Options())
    assert "print('torch', None)" in found.text
    kept = port_text(script.replace("print(", "f("), load_target("torch_npu"), Options())
    assert [edit.line for edit in kept.edits if edit.kind == "refused"] == [2]


def test_a_use_of_what_is_refused_is_refused() -> None:
    script = ANNOTATED.replace("made = [Trainer().run(3)]", "made = [FSDP(2)]")
    assert [one.line for one in ported(script).edits if one.kind == "refused"] == [10]


PLACES = """import torch
made = []
mask = torch.ones(4, 3)
places = torch.tensor([0, 4])
mask.data.view(-1)[places] = 0.0
net = torch.nn.Linear(4, 3)
torch.nn.init.constant_(net.weight, 1.0)
net.weight.data.view(-1)[places] = 7.0
held = {"a": torch.ones(2, 3)}
held["a"].data.view(-1)[places] = 0.5
whole = torch.ones(2, 2)
whole.detach().view(-1)[1] = 9
made += [mask, net.weight, held["a"], whole]
"""


def test_places_of_a_view_of_data_are_set(tmp_path: Path) -> None:
    beside(PLACES, tmp_path)


ONE_WAY = """import torch
from torch import nn
made = []
class args:
    half = False
if args.half:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
net = nn.Linear(3, 1)
nn.init.constant_(net.weight, 0.3)
nn.init.constant_(net.bias, 0.1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step(x):
    if args.half:
        pred = net(x)
    else:
        pred = net(x.to("cpu"))
    loss = pred.pow(2).mean()
    opt.zero_grad()
    if args.half:
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    else:
        loss.backward()
        opt.step()
    return loss.item()
for i in range(3):
    made.append(step(torch.ones(2, 3) * (i + 1)))
"""


@pytest.mark.parametrize("half", [False, True])
def test_a_scaler_that_one_branch_makes_is_asked_for_there(half: bool, tmp_path: Path) -> None:
    beside(ONE_WAY.replace("half = False", f"half = {half}"), tmp_path)


FORMS = """import torch
from torch import nn
made = []
sizes = [1, 2]
made.append(torch.ones(size=(len(sizes),)) * 3)
made.append(torch.zeros(size=[2, len(sizes)]))
class Fixed(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("weight", torch.ones(n))
        self.register_buffer("running_mean", torch.zeros(n))
    def forward(self, x):
        return (x - self.running_mean[None, :, None, None]) * self.weight[None, :, None, None]
def convert(module):
    if isinstance(module, nn.BatchNorm2d):
        made_of = Fixed(module.num_features)
        made_of.running_mean = module.running_mean
        made_of.weight.data = module.weight.data.clone().detach()
        return made_of
    for name, child in module.named_children():
        module.add_module(name, convert(child))
    return module
net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
nn.init.constant_(net[0].weight, 0.5)
nn.init.constant_(net[0].bias, 0.5)
net[1].running_mean.fill_(0.25)
net = convert(net)
made.append(net(torch.ones(1, 1, 2, 2)))
made.append(sorted(net.state_dict()) == ["0.bias", "0.weight", "1.running_mean", "1.weight"])
class Turned(nn.Module):
    def feat(self, x):
        x = x.permute(0, 2, 1)
        x = x.unsqueeze_(1)
        return x * 2
made.append(Turned().feat(torch.arange(6.0).view(1, 2, 3)))
kind = torch.ones(2)
made.append(int("Float" in kind.type()) + 2 * int(kind.long().type().endswith("LongTensor")))
"""


def test_sizes_by_name_buffers_of_others_and_names_of_types(tmp_path: Path) -> None:
    found = beside(FORMS, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


LISTED = """import torch
net = torch.nn.Linear(2, 2)
opt = torch.optim._multi_tensor.AdamW(net.parameters(), lr=0.1, betas=(0.9, 0.95))
"""


def test_loops_over_lists_of_tensors_are_the_optimizers_themselves() -> None:
    assert "optim.AdamW(net.trainable_params(), lr=0.1, betas=(0.9, 0.95))" in ported(LISTED).text


OF_TIMM = """import torch
from timm.utils import ApexScaler, NativeScaler
try:
    from apex import amp
    has_apex = True
except ImportError:
    has_apex = False
def main(model, optimizer):
    if has_apex:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        return ApexScaler()
    return NativeScaler()
"""


def test_where_timm_asks_for_apex_the_script_goes_on_without_it() -> None:
    found = port_text(OF_TIMM, load_target("torch_npu"), Options())
    assert "    from apex import amp\n" in found.text
    assert "return _port_timm_scaler(NativeScaler())" in found.text
    assert [edit.line for edit in found.edits if "goes on without it" in edit.reason] == [4]
    alone = OF_TIMM.replace("ApexScaler, ", "").replace("ApexScaler()", "amp")
    assert "mpcore_compat.apex" in port_text(alone, load_target("torch_npu"), Options()).text


WHOLE = """import torch
try:
    import apex
    there = True
except ImportError:
    there = False
def main(model, optimizer):
    if there:
        model, optimizer = apex.amp.initialize(model, optimizer, opt_level="O1")
        group = apex.parallel.create_syncbn_process_group(4)
"""


def test_an_import_of_apex_that_stays_is_listed() -> None:
    found = port_text(WHOLE, load_target("torch_npu"), Options())
    assert [edit.line for edit in found.edits if "goes on without it" in edit.reason] == [3]
