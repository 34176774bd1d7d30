"""The command ``mpcore profile``: what it says, its JSON, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import assert_refused, mpcore

pytestmark = pytest.mark.usefixtures("warm_workers")

REAL = sys.executable  # the fixture warm_workers puts another in its place
EXPERIMENT = """
import numpy as np
from mpcore import Data, OptimizerSpec

loss, optimizer, batch = "mse", OptimizerSpec("adam"), 8

def data():
    x = np.random.default_rng(0).normal(size=(8, 16, 32)).astype("f4")
    return Data(x, x, x[:0], x[:0])

def build_torch():
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention as attend

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.head = nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x):
            y = self.up(self.norm(x)).unsqueeze(1)
            return x + self.head(attend(y, y, y).squeeze(1))

    return nn.Sequential(Block(), Block())

def build_tensorflow():
    import keras
    parts = [keras.layers.Dense(32), keras.layers.LayerNormalization(), keras.layers.Dense(32)]
    return keras.Sequential([keras.layers.Input((16, 32)), *parts])

def build_mindspore():
    from mindspore import nn
    return nn.SequentialCell(nn.Dense(32, 32), nn.LayerNorm((32,)), nn.Dense(32, 32))
"""
POLICY = "mixed_bfloat16; full path=*.head"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.py"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def run(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return mpcore(path.parent, "profile", path, *args)


@pytest.mark.slow
def test_json_file_and_output_are_one_and_hold_everything(experiment: Path) -> None:
    file = experiment.parent / "profile.json"
    args = ["--policy", "float32", "--policy", POLICY, "--steps", "3", "--trials", "1"]
    args += ["--threads", "1"]
    done = run(experiment, *args, "--format", "json", "--output", str(file))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout, parse_constant=pytest.fail)
    assert json.loads(file.read_text(encoding="utf-8")) == told
    assert (told["format"], told["version"]) == ("mpcore-profile", 1)
    plain, mixed = told["profiles"]
    for one in (plain, mixed):
        assert (one["backend"], one["device"], one["error"]) == ("torch", "cpu", "")
        assert (one["steps"], one["batch"], one["threads"]) == (3, 8, 1)
        assert sum(row["share"] for row in one["rows"]) == pytest.approx(1)
        assert all(row["share"] >= 0 for row in one["rows"])
        assert one["source"].startswith("torch.profiler of torch")
    assert plain["casts"]["rows"] == plain["kernels"] == plain["versus"] == []
    assert mixed["casts"]["ms"] > 0
    why = {layer: row["why"] for row in mixed["not_lowered"] for layer in row["layers"]}
    assert why["*.head"] == "rule: full path=*.head"
    assert {k["phase"] for k in mixed["kernels"] if k["op"] == "attention"} >= {"backward"}
    assert mixed["versus"][0]["policy"] == "float32"
    assert sorted(p.name for p in experiment.parent.iterdir()) == [experiment.name, file.name]


@pytest.mark.slow
def test_three_frameworks_give_one_table(experiment: Path) -> None:
    done = run(
        experiment, "--backend", "torch,tensorflow,mindspore", "--policy", "mixed_float16",
        "--steps", "2", "--trials", "0", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    profiles = json.loads(done.stdout)["profiles"]
    assert [one["backend"] for one in profiles] == ["torch", "tensorflow", "mindspore"]
    for one in profiles:
        assert one.keys() == profiles[0].keys()
        assert sum(row["share"] for row in one["rows"]) == pytest.approx(1)
        assert {row["phase"] for row in one["rows"]} >= {"forward", "backward"}
        dtypes = {row["dtype"] for row in one["rows"]}
        assert dtypes >= {"float16", "float32", "float32 > float16", "float16 > float32"}
        assert "norm: full" in {row["why"] for row in one["not_lowered"]}
        assert {(k["dtype"], k["other"]) for k in one["kernels"]} >= {("float16", "float32")}
        (float32,) = one["versus"]
        assert (float32["policy"], float32["rounds"] >= 5) == ("float32", True)


@pytest.mark.slow
def test_the_table_is_for_people(experiment: Path) -> None:
    done = run(experiment, "--policy", POLICY, "--steps", "2", "--trials", "0", "--rows", "4")
    assert done.returncode == 0, done.stderr
    for words in ("whole step", "casts:", "not lowered, and why", "rule: full path=*.head"):
        assert words in done.stdout
    assert "ms a step, float32" in done.stdout  # faster, slower, or too close to tell


def test_a_failed_run_is_told(experiment: Path) -> None:
    experiment.write_text(EXPERIMENT.replace("x = np", "x = nq"), encoding="utf-8")
    done = run(experiment, "--backend", "torch")
    assert done.returncode == 1
    assert "mixed_bfloat16: failed: data() in experiment.py failed: NameError" in done.stdout


def test_a_run_that_hangs_ends_at_the_time_limit(experiment: Path) -> None:
    text = EXPERIMENT.replace("def data():", "def data():\n    import time; time.sleep(600)")
    experiment.write_text(text, encoding="utf-8")
    done = run(experiment, "--backend", "torch", "--time-limit", "2", "--format", "json")
    assert done.returncode == 1
    (one,) = json.loads(done.stdout)["profiles"]
    assert one["error"] == "stopped after the time limit of 2 s"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--policy", "mixd"], "`policy` must be one of"),
        (["--backend", "pytorch"], "did you mean 'torch'"),
        (["--backend", "numpy"], "lacks a function build_numpy()"),
        (["--steps", "0"], "--steps"),
        (["--time-limit", "nan"], "time-limit"),
        (["--output", "."], "is something else"),
        (["--output", "no/where.json"], "`--output` must lie in a folder"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(experiment: Path, args: list[str], message) -> None:
    done = run(experiment, *args)
    assert_refused(done, message)
    assert list(experiment.parent.iterdir()) == [experiment]


def test_a_missing_framework_is_told_with_its_command(experiment: Path) -> None:
    hide = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n.partition('.')[0] == 'mindspore' else find(n, *a)\n"
    )
    code = f"{hide}import sys; from mpcore.cli import main; main()"
    command = [REAL, "-P", "-c", code, "profile", str(experiment), "--backend=mindspore"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'pip install "mpcore[mindspore]"' in done.stderr
