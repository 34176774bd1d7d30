"""The examples run as a new user would run them, briefly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PYTHON = sys.executable  # the fixture warm_workers puts another in its place
MPCORE = Path(sys.executable).parent / "mpcore"
EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = ("torch", "tensorflow", "mindspore")


def run(*command: object, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3", **env},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("script", "policy", "steps", "batch"),
    [
        ("train_torch.py", "mixed_bfloat16", 41, 32),
        # A scale as in float16, which takes nine times as long in Keras' convolutions.
        ("train_keras.py", "mixed_bfloat16, loss_scale=dynamic", 41, 32),
        ("train_mindspore.py", "mixed_float16", 31, 16),  # its convolutions are slow on a CPU
    ],
)
@pytest.mark.day
def test_training_scripts_learn(
    script: str, policy: str, steps: int, batch: int, tmp_path: Path
) -> None:
    path = EXAMPLES / "image_cnn" / script
    size = ("--steps", steps, "--batch", batch)
    out = run(PYTHON, path, "--policy", policy, *size, cwd=tmp_path)
    accuracy = float(out.split("test accuracy")[1].split(",")[0])
    assert accuracy > 0.5  # ten classes: chance is 0.1; measured 0.64 to 0.69
    assert policy in out


def test_fit_example_logs_the_true_norm(tmp_path: Path) -> None:
    path = EXAMPLES / "image_cnn" / "fit_keras.py"
    size = ("--rows", 512, "--epochs", 2, "--folder", tmp_path)
    out = run(PYTHON, path, "--policy", "mixed_bfloat16", *size, cwd=tmp_path)
    assert float(out.split("test accuracy")[1].split(",")[0]) > 0.25  # measured 0.46
    header, *rows = (tmp_path / "log.csv").read_text().split()
    assert "grad_norm" in header.split(",")
    assert len(rows) == 2


def test_the_mindspore_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    path = EXAMPLES / "image_cnn" / "fit_mindspore.py"
    policy = "float32, loss_scale=dynamic"  # float16's convolutions: the script above
    ends = []
    for steps in (10, 14):
        size = ("--steps", steps, "--batch", 16, "--folder", tmp_path, "--policy", policy)
        ends.append(run(PYTHON, path, *size, cwd=tmp_path).splitlines()[-1])
    assert ends[0].startswith("began at step 0, ")
    assert ends[1].startswith("began at step 10, ")
    assert float(ends[1].split("test accuracy")[1].split(",")[0]) > 0.15  # measured 0.28 after 12


def plans(experiment: Path, cwd: Path) -> dict[str, list[dict[str, str]]]:
    command = [sys.executable, MPCORE, "explain", experiment]
    found = {}
    for framework in FRAMEWORKS:
        options = ("--backend", framework, "--policy", "mixed_float16", "--format", "json")
        plan = json.loads(run(*command, *options, cwd=cwd))
        found[framework] = [layer for layer in plan["layers"] if layer["param"]]
    return found


@pytest.mark.parametrize("name", ["image_cnn", "char_transformer"])
@pytest.mark.usefixtures("warm_workers")
def test_plan_is_the_same_in_every_framework(name: str, tmp_path: Path) -> None:
    found = plans(EXAMPLES / name / "experiment.py", tmp_path)
    columns = ("category", "param", "compute", "output", "rule")
    rows = {key: [[layer[c] for c in columns] for layer in plan] for key, plan in found.items()}
    assert rows["torch"] == rows["tensorflow"] == rows["mindspore"]


@pytest.mark.usefixtures("warm_workers")
def test_transformer_agrees_in_three_frameworks(tmp_path: Path) -> None:
    run(
        sys.executable,
        MPCORE,
        *("compare", EXAMPLES / "char_transformer" / "experiment.py"),
        *("--policy", "float32,mixed_bfloat16", "--steps", 6, "--batch", 4),
        *("--lockstep-steps", 4, "--noise-runs", 2, "--output", "report"),
        cwd=tmp_path,
    )
    report = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert {run["status"] for run in report["runs"]} == {"ok"}
    for pair in report["pairs"]:
        if pair["policy"] == "float32":
            assert pair["lockstep"]["max_rel_loss_diff"] <= 1e-5
            assert pair["lockstep"]["max_rel_grad_diff"] <= 1e-4
            assert not any(number["beyond"] for number in pair["numbers"])


def test_cifar_is_read_where_it_is(tmp_path: Path) -> None:
    folder = os.environ.get("MPCORE_DATA", "")
    if not (Path(folder) / "cifar10_exact.npz").is_file():
        pytest.skip("MPCORE_DATA names no folder with cifar10_exact.npz: it may not be shipped")
    code = (
        "from mpcore.tools.experiment import load_experiment; import sys; "
        "e = load_experiment(sys.argv[1]); print(e.name, e.load_data().x_train.shape[1:])"
    )
    out = run(PYTHON, "-c", code, EXAMPLES / "image_cnn" / "experiment.py", cwd=tmp_path)
    assert out.strip() == "image_cnn on CIFAR-10 (3, 32, 32)"
