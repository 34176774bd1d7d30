"""timm of before 0.8 asks for CUDA by name: its ports run, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

from mpcore_port.targets import load_target

from .ports import ported

STUBS = Path(__file__).parents[2] / "compat" / "mpcore_port" / "stubs" / "path"
OLD = """
import torch
__version__ = "0.4.12"
class Mixup:
    def __call__(self, x, target):
        return x, torch.full((len(x), 4), 0.25, device="cuda")
def create_loader(dataset, input_size, batch_size):
    mean = torch.tensor([127.5]).cuda()
    stream = torch.cuda.Stream()
    for x in torch.utils.data.DataLoader(dataset, batch_size):
        with torch.cuda.stream(stream):
            x = x.cuda(non_blocking=True).sub_(mean)
        torch.cuda.current_stream().wait_stream(stream)
        yield x
"""
NEW = """
__version__ = "1.0.3"
class Mixup:
    def __call__(self, x, target):
        return x, target.to(x.device)
def create_loader(dataset, input_size, batch_size, device=None):
    yield from (x.to(device) for x in dataset.split(batch_size))
"""
SCRIPT = """
import torch
from timm.data import Mixup, create_loader
mixup = Mixup()
for x in create_loader(torch.ones(4, 3), 3, batch_size=2):
    x, target = mixup(x, torch.zeros(2).cuda())
    print(x.is_npu, target.is_npu, tuple(x.shape))
"""


def _run(folder: Path, timm: str) -> str:
    (folder / "timm").mkdir()
    (folder / "timm" / "data.py").write_text(timm)
    (folder / "timm" / "__init__.py").write_text("from timm.data import __version__\n")
    (folder / "port.py").write_text(ported(SCRIPT, load_target("torch_npu")).text)
    path = os.pathsep.join([str(folder), str(STUBS), *sys.path])
    ran = subprocess.run(
        [sys.executable, "port.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_loaders_and_mixup_of_an_old_timm_are_on_the_npu(tmp_path: Path) -> None:
    assert _run(tmp_path, OLD) == "True True (2, 3)\n" * 2


def test_loaders_and_mixup_of_a_new_timm_are_on_the_npu(tmp_path: Path) -> None:
    assert _run(tmp_path, NEW) == "True True (2, 3)\n" * 2
