"""The command ``mpcore memory``: what it says, its JSON, its exit codes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from commands import assert_refused, mpcore

pytestmark = pytest.mark.usefixtures("warm_workers")

EXPERIMENT = """
import numpy as np
from mpcore import Data, OptimizerSpec

loss, optimizer, batch = "mse", OptimizerSpec("adam"), 4

def data():
    x = np.random.default_rng(0).normal(size=(8, 64)).astype("f4")
    return Data(x, x, x[:0], x[:0])

def build_torch():
    from torch import nn
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
"""
VALUES = 64 * 128 + 128 + 128 * 64 + 64
SPLIT = "model_bfloat16, master=split"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.py"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def run(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return mpcore(path.parent, "memory", path, *args)


@pytest.mark.slow
def test_prediction_measurement_and_proposal_in_one_json(experiment: Path) -> None:
    done = run(
        experiment, "--policy", "float32", "--policy", SPLIT, "--measure", "--format", "json",
        "--budget", f"{15 * VALUES}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["backends"]
    assert (found["backend"], found["device"], found["error"]) == ("torch", "cpu", "")
    assert [row["policy"] for row in found["rows"]] == ["float32", SPLIT]
    for row, each in zip(found["rows"], (16, 14), strict=True):
        assert row["predicted"]["total"] == each * VALUES
        assert sum(row["measured"]["bytes"].values()) == pytest.approx(each * VALUES, rel=0.01)
        assert row["measured"]["resident_peak"] > 0
    assert found["plan"]["chosen"] == SPLIT
    assert list(experiment.parent.iterdir()) == [experiment]


@pytest.mark.slow
def test_the_table_is_for_80_columns(experiment: Path) -> None:
    done = run(experiment, "--optimizer", "sgd", "--policy", SPLIT)
    assert done.returncode == 0, done.stderr
    assert f"{VALUES:,} parameters, SGD" in done.stdout
    assert "10 B" in done.stdout  # 2 + 2 + 2, and 4 of momentum
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_failed_run_is_told(experiment: Path) -> None:
    experiment.write_text(EXPERIMENT.replace("x = np", "x = nq"), encoding="utf-8")
    done = run(experiment, "--backend", "torch")
    assert done.returncode == 1
    assert "torch: failed: data() in experiment.py failed: NameError: name 'nq'" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--policy", "mixed"], "choose from 'mixed_float16', 'mixed_bfloat16'"),
        (["--optimizer", "adm"], "`optimizer` must be one of 'sgd', 'adam', got 'adm'; did you"),
        (["--budget", "much"], "`budget` must be a size > 0 such as '1.5GB'"),
        (["--backend", "pytorch"], "did you mean 'torch'"),
        (["--time-limit", "nan"], "time-limit"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(experiment: Path, args: list[str], message) -> None:
    done = run(experiment, *args)
    assert_refused(done, message)


def test_help_says_what_is_counted(experiment: Path) -> None:
    done = run(experiment, "--help")
    assert done.returncode == 0
    assert "Activations are not" in " ".join(done.stdout.replace("│", " ").split())
