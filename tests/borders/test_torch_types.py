"""What a type checker says of the README's code, the quick start's, and what prepare gives."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks

from mpcore.preparation import _Options, prepare

pytest.importorskip("torch")
pytest.importorskip("mypy")

pytestmark = pytest.mark.backend("torch")

ROOT = Path(__file__).parents[2]

# What the README takes as given.
GIVEN = """
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = [(torch.ones(3, 4), torch.ones(3, 2))]


def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


"""
LOOP = """
for x, y in batches:
    with amp.autocast():
        loss = loss_fn(x, y)
    amp.backward(loss)
    amp.apply(clip_norm=1.0)
    print(amp.optimizer.param_groups, amp.model.training)
"""
REVEALED = """
import numpy as np
import torch

import mpcore as mp
from mpcore_numpy import SGD, Model
from unknown_framework import Base  # type: ignore[import-not-found]


class Net(Base):  # type: ignore[misc]
    pass


array = {"fc.weight": np.ones((2, 2), "f4")}
layer = torch.nn.Linear(2, 2)
reveal_type(mp.prepare(layer, None, "bf16"))
reveal_type(mp.prepare(torch.nn.Sequential(layer), None, "bf16", strict=False))
reveal_type(mp.prepare(Model({"fc": "linear"}, array), SGD(array, 0.1), "bf16"))
mp.prepare(Net(), None, "bf16").whatever(1)
mp.prepare(torch.compile(layer), None, "bf16").backward(1)
mp.prepare(layer, None, "bf16").backwards(1)
mp.prepare(layer, None, "bf16", stric=False)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Run mypy --strict once, without a word of our settings; return its lines by file."""
    if not (ROOT / "README.md").exists():
        pytest.skip("the pages are not here")
    folder = tmp_path_factory.mktemp("typed")
    (folder / "readme.py").write_text(GIVEN + blocks("README.md") + LOOP)
    (folder / "quick.py").write_text(blocks("docs/quick-start.md", "PyTorch"))
    (folder / "wrong.py").write_text(REVEALED)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir"]
    command += [str(ROOT / "build" / "mypy"), "readme.py", "quick.py", "wrong.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    lines: dict[str, list[str]] = {"readme.py": [], "quick.py": [], "wrong.py": []}
    for line in done.stdout.splitlines():
        file, _, rest = line.partition(":")
        if file in lines:
            lines[file].append(rest)
    return lines


def test_the_pages_code_has_its_types(said):
    assert said["readme.py"] == []
    assert said["quick.py"] == []


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_nothing_in_the_pages_code(tmp_path):
    if not (ROOT / "README.md").exists():
        pytest.skip("the pages are not here")
    (tmp_path / "readme.py").write_text(GIVEN + blocks("README.md") + LOOP)
    (tmp_path / "quick.py").write_text(blocks("docs/quick-start.md", "PyTorch"))
    command = ["pyright", "--pythonpath", sys.executable, "readme.py", "quick.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "0 errors" in done.stdout, done.stdout + done.stderr


def test_prepare_tells_what_it_gives_and_a_slip_is_seen(said):
    revealed = [line for line in said["wrong.py"] if "Revealed" in line]
    names = [re.findall(r'"([\w.]+)"', line)[0].rpartition(".")[2] for line in revealed]
    assert names == ["TorchAmp", "TorchAmp", "NumpyAmp"]
    errors = [line for line in said["wrong.py"] if "error" in line]
    assert '"TorchAmp" has no attribute "backwards"' in errors[0]
    assert {line.partition(":")[0] for line in errors[1:]} == {"22"}, errors


def test_options_are_those_of_prepare():
    keywords = {
        name: parameter.annotation
        for name, parameter in inspect.signature(prepare).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert _Options.__annotations__.keys() == keywords.keys()
    given = {name: kept.__forward_arg__ for name, kept in _Options.__annotations__.items()}
    assert given == keywords
