"""Loops under DistributedDataParallel in MindSpore's form: two processes, beside torch's two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpcore_port.engine import port_text, port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

_ABORTED = "terminate called without an active exception"
SCRIPT = Path(__file__).parent / "ranks" / "two_ranks.py"


def started(*command: str, folder: Path) -> list[np.ndarray]:
    """Run a script on two processes; return the losses of each."""
    folder.mkdir()
    binaries = Path(sys.executable).parent
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(binaries / command[0]), *command[1:], str(folder)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    logs = "".join(path.read_text()[-3000:] for path in folder.glob("log/worker_*.log"))
    # On a busy machine a thread of torch's gloo may abort its process behind the last line.
    aborted = command[0] == "torchrun" and _ABORTED in done.stderr
    assert done.returncode == 0 or aborted, done.stderr[-3000:] + logs
    return [np.loadtxt(folder / f"losses-{rank}.txt") for rank in range(2)]


def test_ranks_of_a_port_lose_as_ranks_of_torch_do(tmp_path: Path) -> None:
    """They start from other weights each, take other batches, clip, and skip the average once."""
    done = port_text(SCRIPT.read_text(encoding="utf-8"), load_target("mindspore"), Options())
    assert not done.failures
    assert ".backward()" not in done.text
    assert "no_sync" not in done.text
    port = tmp_path / "ported.py"
    port.write_text(done.text, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    theirs = started(
        "torchrun", "--standalone", "--nproc-per-node=2", str(SCRIPT), folder=tmp_path / "torch"
    )
    ours = started(
        "msrun", "--worker_num=2", "--local_worker_num=2", "--join=True", "--log_dir=log",
        f"--master_port={number}", str(port), folder=tmp_path / "mindspore",
    )  # fmt: skip
    for own, other in zip(ours, theirs, strict=True):
        assert len(own) == len(other) == 40
        np.testing.assert_allclose(own, other, rtol=1e-5)
    assert abs(theirs[0] - theirs[1]).max() > 0.01


TWO_FILES = {
    "engine": """import torch
def train(model, optimizer, loader, criterion):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
""",
    "main": """import torch
from engine import train
from torch.nn.parallel import DistributedDataParallel
def wrapped(model):
    return DistributedDataParallel(model)
""",
}


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_loop_whose_network_another_file_wraps_averages_too(
    wrapped: bool, tmp_path: Path
) -> None:
    for name, text in TWO_FILES.items():
        if wrapped or name == "engine":
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    found = port_tree(walk(tmp_path), load_target("mindspore"), Options())
    engine = next(file for file in found.files if "def train" in file.text)
    assert ("grads = grad_reducer(grads)" in engine.text) == wrapped
