"""``mpcore tune --for DEVICE``: a prediction, marked as one; what is forbidden; wrong names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import assert_refused, mpcore

import mpcore as mp
from mpcore.capabilities.devices import device_of, save_device
from mpcore.capabilities.hardware import Device, Figure
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.tune.foretold import foretell
from mpcore.tools.tune.task import Task


@pytest.mark.slow
def test_the_file_says_that_it_is_a_prediction_and_from_what(experiment: Path) -> None:
    folder = experiment.parent
    done = mpcore(folder, "tune", experiment, "--for", "h100", "--json", "t.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "predicted for NVIDIA H100 SXM, not measured" in done.stdout
    text = (folder / "tuned.toml").read_text(encoding="utf-8")
    assert "# not measured: predicted for NVIDIA H100 SXM" in text
    assert "published" in text
    assert str(mp.Policy.load(folder / "tuned.toml")) == "mixed_bfloat16"
    found = json.loads((folder / "t.json").read_text(encoding="utf-8"))["found"]["torch"]
    assert found["level"] == "predicted"
    assert found["device"]["key"] == "h100"


def test_a_wrong_name_is_told_the_nearest(experiment: Path) -> None:
    done = mpcore(experiment.parent, "tune", experiment, "--for", "h10")
    assert_refused(done, "did you mean 'h100'")
    assert not (experiment.parent / "tuned.toml").exists()


def test_it_does_not_go_with_what_measures(experiment: Path) -> None:
    done = mpcore(experiment.parent, "tune", experiment, "--for", "h100", "--page", "t.html")
    assert_refused(done, "`--for` measures nothing")


@pytest.mark.slow
def test_what_this_machine_lacks_is_not_tried(experiment: Path) -> None:
    source = {"how": "measured", "source": "doctor", "date": "2026-01-01"}
    lacks = Figure("matrix", "bfloat16", "absent", **source)
    save_device(Device("here", "A CPU", (lacks,)), experiment.parent / "here.json")
    done = mpcore(
        experiment.parent, "tune", experiment, "--threads", "1", "--budget", "300", "--fast",
        "--hardware", "here.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = (experiment.parent / "tuned.toml").read_text(encoding="utf-8")
    assert mp.Policy.load(experiment.parent / "tuned.toml") == mp.Policy.named("float32")
    assert "bfloat16 is absent" in text


@pytest.fixture
def loaded(experiment: Path) -> Experiment:
    pytest.importorskip("torch")
    from mpcore.tools.experiment.experiment import load_experiment

    return load_experiment(experiment)


def test_what_the_device_lacks_is_refused_and_the_rest_ordered(loaded: Experiment) -> None:
    task = Task("torch", ("bfloat16", "float16"))
    found = foretell(loaded, task, device_of("v100"))
    assert found.policy == "mixed_float16"
    assert "absent" in found.refused["mixed_bfloat16"]
    ratios = {row[0]: row[2] for row in found.rows}
    assert ratios["float32"] == 1.0
    assert ratios["mixed_float16"] == pytest.approx(15.67 / 125)


def test_without_a_figure_of_float32_the_speed_is_not_known(loaded: Experiment) -> None:
    found = foretell(loaded, Task("torch"), device_of("ascend910b2c"))
    assert found.policy == "mixed_bfloat16"
    assert "speed     not known" in "\n".join(found.lines())


def test_where_nothing_is_allowed_float32_is_the_answer(loaded: Experiment) -> None:
    assert foretell(loaded, Task("torch"), device_of("t4")).policy == "float32"
