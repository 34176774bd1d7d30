"""Master weights over two ranks: DDP and FSDP2; run with --backend torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.backend("torch"),
    pytest.mark.slow,
    pytest.mark.usefixtures("warm_workers"),
]

WORKER = Path(__file__).with_name("worker_torch_masters.py")
LIMIT = 600.0  # seconds; a rank that waits for the other would wait for ever


def test_masters_under_ddp_and_fsdp(tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), tmp_path / "store"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=LIMIT)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for process, text in zip(ranks, told, strict=True):
        assert process.returncode == 0, text
        assert text.splitlines()[-1] == "all held", text
