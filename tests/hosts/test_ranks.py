"""Two ranks over gloo: DDP and FSDP2 in Lightning and in Accelerate, beside amp.step's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LIMIT = 600.0  # seconds; a rank that waits for the other would wait for ever


def two_ranks(host: str, folder: Path) -> list[list[dict[str, Any]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE),
    }
    files = [folder / f"rank{rank}.log" for rank in range(2)]
    ranks = []
    for rank, file in enumerate(files):
        command = [sys.executable, HERE / "worker_ranks.py", host, str(rank), folder]
        with file.open("w") as log:
            ranks.append(subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=folder))
    try:
        codes = [process.wait(LIMIT) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    texts = [file.read_text() for file in files]
    assert codes == [0, 0], "\n".join(text[-3000:] for text in texts)
    return [
        [json.loads(line[5:]) for line in text.splitlines() if line.startswith("SAID ")]
        for text in texts
    ]


@pytest.mark.parametrize("host", ["lightning", "accelerate"])
def test_two_ranks_end_where_steps_end_and_resume(host: str, tmp_path: Path) -> None:
    pytest.importorskip(host, reason=f"{host} is not installed: make hosts")
    one, two = two_ranks(host, tmp_path)
    assert one == two  # ranks skip together and hold the same weights
    assert [row["kind"] for row in one] == ["ddp", "ddp", "fsdp", "fsdp"]
    for row in one:
        assert row["host"] == row["resumed"] == row["own"]
        assert row["host"]["skipped"] == 2  # one of each rank
    words = {"lightning": "wraps the model before", "accelerate": "no_sync"}[host]
    assert all(words in row["refused"] for row in one[:2])
