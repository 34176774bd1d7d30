"""The distributed examples: two ranks, a rank that dies, another number of ranks afterwards."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
LIMIT = 900.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3"}


def started(*command: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **QUIET, "GLOO_SOCKET_IFNAME": "lo"},
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out[-4000:]
    return out


def run(*command: object, cwd: Path) -> str:
    return ended(started(*command, cwd=cwd))


def accuracy(out: str) -> float:
    return float(out.split("test accuracy ")[1].split(",")[0])


def children(process: subprocess.Popen[str]) -> list[int]:
    """Return what a process has started that runs Python."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in listed]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_torch_a_rank_dies_and_the_run_goes_on(tmp_path: Path) -> None:
    """Killed after the first save, started again; then one rank goes on alone."""
    options = ("--folder", tmp_path, "--save-every", 6, "--batch", 32)
    script = EXAMPLES / "train_torch.py"
    command = (*TORCHRUN, 2, script, "--steps", 24, *options)
    process = started(*command, cwd=tmp_path)
    saved, until = tmp_path / "last.pt", time.monotonic() + LIMIT
    while not saved.exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(children(process)[-1], signal.SIGKILL)
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode != 0, out[-2000:]
    assert "2 ranks on cpu, ddp, from step 0" in out
    again = run(*command, cwd=tmp_path)
    begun = re.search(r"2 ranks on cpu, ddp, from step (\d+)", again)
    assert begun is not None
    assert int(begun[1]) in (6, 12, 18, 24)
    alone = run(*TORCHRUN, 1, script, "--steps", 40, *options, cwd=tmp_path)
    assert "1 ranks on cpu, ddp, from step 24" in alone
    assert accuracy(alone) > 0.5  # ten classes: chance is 0.1


def test_torch_shards_go_on_in_another_number_of_them(tmp_path: Path) -> None:
    options = ("--folder", tmp_path, "--batch", 32, "--wrap", "fsdp2")
    script = EXAMPLES / "train_torch.py"
    two = run(*TORCHRUN, 2, script, "--steps", 20, *options, cwd=tmp_path)
    assert "2 ranks on cpu, fsdp2, from step 0" in two
    one = run(*TORCHRUN, 1, script, "--steps", 40, *options, cwd=tmp_path)
    assert "1 ranks on cpu, fsdp2, from step 20" in one
    assert accuracy(one) > 0.5


def test_keras_goes_on_with_another_number_of_replicas(tmp_path: Path) -> None:
    policy = "mixed_bfloat16, loss_scale=dynamic"  # float16 takes eight times as long on a CPU
    options = ("--rows", 1280, "--folder", tmp_path, "--policy", policy)
    script = EXAMPLES / "train_keras.py"
    two = run(sys.executable, script, "--epochs", 1, *options, cwd=tmp_path)
    assert "2 replicas, from epoch 0" in two
    one = run(sys.executable, script, "--epochs", 2, "--replicas", 1, *options, cwd=tmp_path)
    assert "1 replicas, from epoch 1" in one
    assert accuracy(one) > 0.5


def test_mindspore_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    options = (EXAMPLES / "train_mindspore.py", "--batch", 16, "--folder", tmp_path / "run")
    for ranks, steps, first in ((2, 12, 0), (1, 18, 12)):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        logs = tmp_path / f"logs{ranks}"
        count = (f"--worker_num={ranks}", f"--local_worker_num={ranks}", f"--master_port={port}")
        msrun = (Path(sys.executable).parent / "msrun", "--join=True", f"--log_dir={logs}")
        binaries = Path(sys.executable).parent
        path = f"PATH={binaries}{os.pathsep}{os.environ['PATH']}"  # msrun starts `python`
        run("env", path, *msrun, *count, *options, "--steps", steps, cwd=tmp_path)
        out = (logs / "worker_0.log").read_text()
        assert f"{ranks} ranks, from step {first}" in out
    assert accuracy(out) > 0.2
