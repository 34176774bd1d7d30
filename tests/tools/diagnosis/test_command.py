"""The command ``mpcore diagnose``: what it says, its JSON, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mpcore as mp
from mpcore.tools.diagnosis import PostMortem, Trial
from mpcore.tools.diagnosis.command import diagnose

pytestmark = pytest.mark.usefixtures("warm_workers")

EXPERIMENT = """
import numpy as np
from mpcore import Data, OptimizerSpec

loss, optimizer, batch = "mse", OptimizerSpec("sgd", learning_rate=1e-6), 4

def data():
    x = np.random.default_rng(0).normal(size=(16, 8)).astype("f4")
    x[8:] *= {factor}
    return Data(x, x, x[:0], x[:0])

def build_torch():
    from torch import nn
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
"""
DEAD = PostMortem(
    3, "forward", "block.attn", "Attention", None, "float16", 1e5, 65504.0, 8.0,
    rule="full path=block.attn", policy="mixed_float16; full path=block.attn", fixes=True,
    tried=(Trial("full path=block.attn", passed=True),), sentence="Step 3 overflowed.",
)  # fmt: skip


def _experiment(folder: Path, factor: float) -> Path:
    path = folder / "experiment.py"
    path.write_text(EXPERIMENT.replace("{factor}", str(factor)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_an_experiment_is_trained_until_it_overflows(tmp_path: Path, capsys) -> None:
    path = _experiment(tmp_path, 1e6)
    assert diagnose(path, steps=8, form="json") == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["error"], run["skipped"]) == ("", 1)
    found = PostMortem.from_dict(run["postmortems"][0])
    assert (found.phase, found.layer, found.dtype) == ("forward", "0", "float16")
    assert found.fixes
    assert mp.Policy.parse(found.policy or "")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_sound_experiment_and_one_that_fails(tmp_path: Path, capsys) -> None:
    path = _experiment(tmp_path, 1)
    assert diagnose(path, steps=3, policy=["mixed_bfloat16"]) == 0
    assert "nothing overflowed in 3 steps" in capsys.readouterr().out
    broken = path.read_text(encoding="utf-8").replace("nn.Tanh()", "nn.Linear(3, 3)")
    path.write_text(broken, encoding="utf-8")
    assert diagnose(path, steps=3) == 1
    assert "failed: " in capsys.readouterr().out


def test_what_was_written_before_is_shown(tmp_path: Path, capsys) -> None:
    runs = [{"backend": "torch", "policy": "mixed_float16", "postmortems": [DEAD.to_dict()]}]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"experiment": "x", "runs": runs}), encoding="utf-8")
    assert diagnose(tmp_path) == diagnose(report) == 1
    out = capsys.readouterr().out
    assert out.count("torch mixed_float16\nStep 3 overflowed.") == 2
    DEAD.save(tmp_path / "dead.json")
    assert diagnose(tmp_path / "dead.json", form="json") == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["postmortems"] == [DEAD.to_dict()]
    lines = tmp_path / "steps.jsonl"
    record = {"step": 1, "stepped": True, "loss": 1.0}
    lines.write_text(json.dumps(record) + "\n", encoding="utf-8")
    assert diagnose(lines) == 0
    assert "nothing overflowed in 1 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("absent.jsonl", {}, "is not there"),
        ("absent.py", {}, "absent.py"),
        ("odd.json", {}, "is no JSON"),
        ("odd.json", {"backend": ["torch"]}, "`--backend` is for an EXPERIMENT.py"),
        ("odd.json", {"time_limit": float("nan")}, "`--time-limit`"),
    ],
)
def test_wrong_input_is_one_error(tmp_path: Path, name, given, said) -> None:
    (tmp_path / "odd.json").write_text("{", encoding="utf-8")
    with pytest.raises(mp.MpcoreError, match=said):
        diagnose(tmp_path / name, **given)
