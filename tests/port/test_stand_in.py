"""The stand-in for an NPU says what torch_npu says: where a loss is, what is not there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mpcore_port

pytest.importorskip("torch")
PATH = Path(mpcore_port.__file__).parent / "stubs" / "path"
HEAD = """
import torch, torch_npu
model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
"""
TAIL = """
with torch.autocast("npu"):
    loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([1]))
torch.npu.amp.GradScaler().scale(loss).backward()
print(x.is_npu, loss.is_npu)
"""
MOVES = {
    "npu": "model.npu(); x = x.npu()",
    "to": "model.to('npu'); x = x.to('npu:0')",
    "device": "d = torch.device('npu'); model.to(d); x = x.to(d)",
    "made there": "model.to('npu'); x = torch.ones(1, 2, device='npu')",
    "number": "model.to('npu:0'); x = x.to(0)",
    "default": "torch.set_default_device('npu')\nmodel = torch.nn.Linear(2, 2)\n"
    "x = torch.ones(1, 2)",
    "alias": "model.npu(); x = torch.npu.FloatTensor([[1.0, 2.0]])",
    "in a region": "with torch.device('npu'):\n    model = torch.nn.Linear(2, 2)\nx = x.npu()",
}


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": str(PATH), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_moved_is_there() -> None:
    each = "".join(
        f"try:\n{textwrap.indent(HEAD + move + TAIL, '    ')}\nfinally:\n"
        "    torch.set_default_device('cpu')\n"
        for move in MOVES.values()
    )
    done = _run(each)
    assert done.stdout.splitlines() == ["True True"] * len(MOVES), done.stderr


WRONG = {
    "loss on the CPU": (HEAD + TAIL, "Device type of outputs should be npu"),
    "DataParallel": (HEAD + "torch.nn.DataParallel(model)", "DataParallel is not supported"),
    "float64 tensors": (HEAD + "torch.npu.DoubleTensor([1.0])", "no attribute 'DoubleTensor'"),
}


@pytest.mark.parametrize("name", ["loss on the CPU", "DataParallel", "float64 tensors"])
def test_what_an_npu_has_not_raises(name: str) -> None:
    code, words = WRONG[name]
    done = _run(code)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
