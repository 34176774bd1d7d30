"""Names that hold no arithmetic, which one process answers: beside torch."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from mindspore import Tensor
from PIL import Image

import mpcore_port_runtime as port
from mpcore.errors import BackendError

from .ports import beside, loaded, ported

# --- groups of processes -------------------------------------------------------------------------

GROUPS = """
import os
import tempfile
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
made = []
store = os.path.join(tempfile.mkdtemp(), "store")
dist.init_process_group("gloo", init_method="file://" + store, rank=0, world_size=1)
group = dist.new_group(list(range(dist.get_world_size())), backend="gloo")
made.append([dist.get_rank(group), dist.get_world_size(group=group)])
def summed(x, to=None):
    work = dist.all_reduce(x, op=dist.ReduceOp.SUM, group=to, async_op=True)
    made.append(work.wait() is not None)
    made.append(x)
summed(torch.ones(2) * 3)
summed(torch.ones(2) * 4, group)
summed(torch.ones(2) * 5, dist.group.WORLD)
held = [torch.zeros(2)]
dist.all_gather(held, torch.ones(2) * 6, group=group)
made.append(held[0])
dist.gather(torch.ones(2) * 7, gather_list=held, dst=0)
made.append(held[0])
got = torch.zeros(2)
dist.scatter(got, [torch.ones(2) * 8], src=0)
made.append(got)
objects = [None]
dist.gather_object({"a": 1}, objects, dst=0, group=group)
made.append(objects[0]["a"])
x = torch.ones(2)
dist.broadcast(x, src=0, group=group, async_op=False)
dist.barrier(group=group)
made.append(x)
@record
def main():
    return 9
made.append(main())
made.append(dist.Backend.NCCL == "nccl")
dist.destroy_process_group()
"""


def test_collectives_take_the_group_of_all_processes(tmp_path):
    found = beside(GROUPS, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert any("one of some of them raises" in edit.effect for edit in found.edits)


def test_a_barrier_is_told_its_devices(tmp_path):
    script = (
        "import torch.distributed as dist\ndist.barrier(device_ids=[0])\nmade = [dist.get_rank()]\n"
    )
    assert loaded(ported(script).text, tmp_path)["made"] == [0]


def test_a_group_of_some_processes_raises():
    with pytest.raises(BackendError, match=r"`ranks` must be those of all processes, \[0\]"):
        port.new_group([0, 1])


# --- bytes, files and flags ----------------------------------------------------------------------

BYTES = """
import pickle
import torch
from safetensors.torch import load_file, save_file
made = []
data = pickle.dumps({"loss": 1.5, "names": ["a", "b"]})
tensor = torch.ByteTensor(torch.ByteStorage.from_buffer(data))
made.append(tensor)
made.append(pickle.loads(tensor.cpu().numpy().tobytes())["loss"])
made.append(torch.is_grad_enabled())
with torch.no_grad():
    made.append(torch.is_grad_enabled())
@torch.no_grad()
def inside():
    return torch.is_grad_enabled()
made.append(inside())
made.append(torch.is_grad_enabled())
made.append(torch.hub.urlparse("https://a.b/c").netloc == "a.b")
made.append(torch.hub.HASH_REGEX.search("net-0a1b.pth").group(1) == "0a1b")
kept = {"x": torch.arange(3.0), "y": torch.ones(2, 2).t().contiguous()}
save_file(kept, PATH, metadata={"format": "pt"})
state = load_file(PATH, device="cpu")
made.append(sorted(state) == ["x", "y"])
made.append(state["x"])
"""


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_bytes_files_and_flags(tmp_path):
    found = beside(BYTES.replace("PATH", repr(str(tmp_path / "a.safetensors"))), tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_torch_reads_what_a_port_writes(tmp_path):
    from safetensors.torch import load_file

    made = np.arange(6, dtype=np.float32).reshape(2, 3)
    port.save_file({"a": Tensor(made)}, tmp_path / "a.safetensors")
    assert torch.equal(load_file(tmp_path / "a.safetensors")["a"], torch.from_numpy(made))


BAR = """
import torch
from accelerate.utils import DistributedType, is_wandb_available, release_memory, tqdm
from accelerate.utils import extract_model_from_parallel, is_deepspeed_available
made = [sum(tqdm(range(4), main_process_only=True, disable=True, desc="steps"))]
bar = tqdm(total=3, disable=True)
bar.update(1)
made.append(release_memory(torch.ones(2), 3))
made.append(DistributedType.NO == "NO")
made.append([is_deepspeed_available(), is_wandb_available()])
net = torch.nn.Linear(2, 2)
made.append(extract_model_from_parallel(net) is net)
"""


class _Bar(list):  # type: ignore[type-arg]
    """tqdm's bar, which this project does not install."""

    def __init__(self, given=(), **settings):
        super().__init__(given)
        assert settings.pop("disable")
        assert not settings.keys() - {"desc", "total"}

    def update(self, by):
        self.append(by)


def test_plain_names_of_accelerate(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=_Bar))
    found = ported(BAR)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    made = loaded(found.text, tmp_path)["made"]
    assert made[:3] == [6, [None, None], True]
    assert made[3][0] is False
    assert made[4] is True


FOLDERS = """
import torch
from torchvision.datasets.folder import IMG_EXTENSIONS, ImageFolder, default_loader
from torchvision.datasets.cifar import CIFAR10
from torchvision.transforms.transforms import Compose, ToTensor
import torchvision.transforms.transforms as T
data = ImageFolder(ROOT, Compose([T.CenterCrop(2), ToTensor()]), loader=default_loader)
made = [len(data), data[1][0], data[1][1], default_loader(data.samples[0][0]).size]
made.append([one for one in IMG_EXTENSIONS if data.samples[0][0].endswith(one)])
"""


def test_torchvisions_names_in_its_own_files(tmp_path):
    for place, name in enumerate("ab"):
        (tmp_path / "root" / name).mkdir(parents=True)
        picture = np.full((4, 4, 3), 100 * place, np.uint8)
        Image.fromarray(picture).save(tmp_path / "root" / name / "x.png")
    found = ported(FOLDERS.replace("ROOT", repr(str(tmp_path / "root"))))
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    made = loaded(found.text, tmp_path)["made"]
    assert (made[0], made[2], made[3], made[4]) == (2, 1, (4, 4), [".png"])
    np.testing.assert_allclose(made[1].asnumpy(), np.full((3, 2, 2), 100 / 255), 1e-6)
