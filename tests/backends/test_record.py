"""Runs recorded in the loops of every framework, and what is found between two of them.

Run once per framework with --backend.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mpcore as mp
from mpcore.backend.driver import OptimizerSpec
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.recording.compare_runs import Runs, compare_runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "experiments" / "two_inputs.py"
STEPS = 4


@pytest.fixture
def setup(kit: Any) -> Setup:
    if kit.name == "numpy":
        pytest.skip("numpy has no layers to hear")
    return Setup(load_experiment(EXAMPLE), kit.name)


def run(setup: Setup, folder: Path, fault: str = "", **more: Any) -> Any:
    """Train some steps with mpcore's own step, recorded; with a fault from the third on."""
    model = setup.model()
    spec = OptimizerSpec("sgd", 0.05, momentum=0.5 if fault == "momentum" else 0.9)
    amp = mp.prepare(model, setup.optimizer(model, spec), more.pop("policy", "float32"))
    recording = mp.record(model, folder, steps=more.pop("steps", STEPS), **more)
    loss_fn = setup.loss(model)
    for number, (x, y) in enumerate(setup.data.batches(STEPS, 4, 0)):
        if fault == "labels" and number == 2:
            y = (y + 1) % 4
        if fault == "inputs" and number == 2:
            x = (x[0] * 2, x[1])
        if fault == "rate" and number == 2:
            setup.driver.set_rate(amp, 0.2)
        amp.step(loss_fn, *setup.batch(x, y))
    recording.stop()
    return recording


def between(a: Path, b: Path) -> Runs:
    (found,) = compare_runs(a, b).values()
    return found


def test_two_equal_runs_are_the_same_and_faults_are_found(setup: Setup, tmp_path: Path) -> None:
    recording = run(setup, tmp_path / "a")
    assert recording.steps == STEPS
    run(setup, tmp_path / "b", start=tmp_path / "a")
    found = between(tmp_path / "a", tmp_path / "b")
    assert found.same, found.verdict
    assert found.steps == tuple(range(STEPS))
    for fault, step, phase in (
        ("momentum", 1, "update"),
        ("rate", 2, "update"),
        ("inputs", 2, "input"),
    ):
        run(setup, tmp_path / fault, fault, start=tmp_path / "a")
        found = between(tmp_path / "a", tmp_path / fault)
        assert not found.same, fault
        # Momentum shows in the second step; its formula is told from the first three.
        assert found.step in (step, 0 if fault == "momentum" else step), (fault, found.verdict)
        assert found.found is not None
        assert found.found.first is not None
        assert found.found.first.phase == phase, found.verdict


def test_other_first_weights_are_said_and_handed_over(setup: Setup, tmp_path: Path) -> None:
    run(setup, tmp_path / "a", steps=1)
    run(setup, tmp_path / "b", steps=1)
    found = between(tmp_path / "a", tmp_path / "b")
    assert "other first weights" in found.verdict
    assert f"start={str(tmp_path / 'a')!r}" in found.advice


def test_every_second_step_in_16_bits(setup: Setup, tmp_path: Path) -> None:
    policy = "mixed_bfloat16"
    recording = run(setup, tmp_path / "a", every=2, policy=policy)
    assert recording.steps == 2
    names = sorted(path.parent.name for path in tmp_path.glob("a/rank-0/step-*/*"))
    assert names == ["step-000000", "step-000002"]
    run(setup, tmp_path / "b", every=2, policy=policy, start=tmp_path / "a")
    assert between(tmp_path / "a", tmp_path / "b").same
