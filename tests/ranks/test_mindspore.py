"""Two ranks of MindSpore on one machine: what one sees, both decide. --backend mindspore."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore")
pytestmark = [pytest.mark.backend("mindspore"), pytest.mark.slow]

SCRIPT = Path(__file__).with_name("mindspore_rank.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Run the script on two ranks; return what each found."""
    folder = tmp_path_factory.mktemp("ranks")
    binaries = Path(sys.executable).parent
    command = [
        *(str(binaries / "msrun"), "--worker_num=2", "--local_worker_num=2", "--join=True"),
        *(f"--master_port={free_port()}", f"--log_dir={folder / 'log'}", "--cluster_time_out=600"),
        *(str(SCRIPT), str(folder)),
    ]
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    logs = "".join(path.read_text()[-3000:] for path in folder.glob("log/*.log"))
    assert done.returncode == 0, logs
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.day
def test_overflow_on_one_rank_skips_both(ranks, way):
    """P17: twenty steps, spoilt now on one rank, now on the other."""
    first, second = (found[way] for found in ranks)
    assert first["stepped"] == second["stepped"] == first["expected"]
    assert 0 < first["skipped"] < 20
    assert first["scale"] == second["scale"]
    assert first["weights"] == second["weights"]
    assert first["kept_buffers"]
    assert second["kept_buffers"]


def test_micro_batch_is_left_out_on_both_ranks(ranks):
    first, second = (found["parts"] for found in ranks)
    assert first == second
    assert (first["stepped"], first["dropped"]) == (True, 1)


def test_ranks_that_do_not_agree_part(ranks):
    """A register's overflow shows in no value: only the agreement carries it over."""
    assert [found["agreed"] for found in ranks] == [False, False]
    assert [found["alone"] for found in ranks] == [True, False]


def test_native_ranks_disagree(ranks):
    assert [found["native"] for found in ranks] == [True, False]
