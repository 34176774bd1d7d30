"""``mpcore tune`` and ``mp.tune`` on a small net: a whole search, a second one, and wrong input."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import assert_refused, mpcore

import mpcore as mp

pytestmark = pytest.mark.usefixtures("warm_workers")


def run(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return mpcore(path.parent, "tune", path, "--threads", "1", *args)


@pytest.mark.slow
@pytest.mark.day
def test_a_search_and_a_second_one_that_goes_on(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes a minute
    folder = experiment.parent
    args = ["--try", "1", "--budget", "900", "--page", "t.html", "--json", "t.json"]
    done = run(experiment, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((folder / "t.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    found = told["found"]["torch"]
    policy = mp.Policy.load(folder / "tuned.toml")
    assert policy == mp.Policy.parse(found["policy"])
    assert found["level"] == "proven"
    named = {"float32", "mixed_bfloat16", "autocast_bfloat16", "portable_bfloat16"}
    assert named >= {entry["policy"] for entry in found["time"]} >= {"float32", "mixed_bfloat16"}
    assert all(float(entry["rho"]) < 0.5 for entry in found["screen"])
    assert len(found["again"]) >= 1
    assert all(entry["why"] == "" and entry["steps"] for entry in found["again"])
    timed = ("looked", "race", "duel", "again")
    assert sum(entry.get("steps", 0) for kind in timed for entry in found.get(kind, ())) <= 500
    assert {"batch=16", "batch=4", "torch.compile"} <= {entry["move"] for entry in found["outer"]}
    for line in ("policy  ", "speed  ", "full  ", "proof  ", "cost  ", "holds for "):
        assert line in done.stdout
    assert "<svg" in (folder / "t.html").read_text(encoding="utf-8")
    log = (folder / "tuned.log.jsonl").read_text(encoding="utf-8")

    again = run(experiment, *args)
    assert again.returncode == 0, again.stdout + again.stderr
    told = json.loads((folder / "t.json").read_text(encoding="utf-8"))
    assert told["found"]["torch"]["policy"] == found["policy"]
    assert told["found"]["torch"]["cost"][0]["steps"] == 0
    assert (folder / "tuned.log.jsonl").read_text(encoding="utf-8") == log


@pytest.mark.slow
def test_a_policy_is_checked(experiment: Path) -> None:
    (experiment.parent / "p.toml").write_text(mp.Policy.named("mixed_bfloat16").to_toml())
    done = run(experiment, "--check", "p.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of float32's time" in done.stdout
    assert "of the noise between batches: as it should be" in done.stdout
    assert not (experiment.parent / "tuned.toml").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.5 * x[:48]", "0 * x[:48]", "must hold more than one value"),
        ("x[:48]", "x[:0]", "must hold at least one example"),
        ("    return Data", "    x[3, 2] = np.nan\n    return Data", "inf or NaN in example 3"),
        ("def build_torch():", "def build_torch():\n    import os; os.abort()", "SIGABRT"),
        (
            "def build_torch():",
            "def build_torch():\n    import time; time.sleep(600)",
            "measured, at: ",
        ),
    ],
)
def test_what_cannot_be_judged_is_one_line(experiment: Path, old: str, new: str, message) -> None:
    text = experiment.read_text(encoding="utf-8")
    experiment.write_text(text.replace(old, new), encoding="utf-8")
    done = run(experiment, "--budget", "2" if "anything" in message else "60")
    assert (done.returncode, done.stdout.count("\n")) == (1, 1), done.stdout + done.stderr
    assert message in done.stdout
    assert list(experiment.parent.iterdir()) == [experiment]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--formats", "int8"], "formats"),
        (["--formats", ","], "must name bfloat16"),
        (["--budget", "nan"], "budget"),
        (["--check", "none.toml"], "cannot be read"),
        (["--output", "experiment.py"], "new file or an earlier answer"),
        (["--output", "no/where.toml"], "folder that can be written"),
        (["--backend", "pytorch"], "did you mean 'torch'"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(experiment: Path, args: list[str], message) -> None:
    done = run(experiment, *args)
    assert_refused(done, message)
    assert list(experiment.parent.iterdir()) == [experiment]


@pytest.mark.slow
def test_a_layer_that_needs_float32_is_found_and_kept(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Cancels(nn.Module):
        def forward(self, x):
            return (x * x + 3e3) - 3e3

    def build():
        return nn.Sequential(
            nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), Cancels(), nn.Linear(32, 16)
        )

    x = np.random.default_rng(0).normal(size=(64, 16)).astype("f4")
    parts = build, mp.Data(x, x, x[:0], x[:0]), "mse", mp.OptimizerSpec("sgd")
    found = mp.tune(parts, fast=True, tries=0, budget=200)
    (culprits,) = found.evidence["culprits"]
    assert culprits["units"] == ["3"]
    assert culprits["evaluations"] <= 60
    if found.ratio != 1.0:  # not float32
        assert "full path=3" in str(found.policy)
    found.save(tmp_path / "tuned.toml")
    assert mp.Policy.load(tmp_path / "tuned.toml") == found.policy
    assert len(str(found).splitlines()) == 6


@pytest.mark.parametrize(
    ("parts", "message"), [((1, 2), "must be a path"), ("no.py", "does not exist")]
)
def test_what_is_no_experiment_is_refused(parts, message: str) -> None:
    with pytest.raises(mp.ExperimentError, match=message):
        mp.tune(parts)
