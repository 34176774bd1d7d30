"""Experiment files: what is read, and every mistake in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpcore import ExperimentError, PolicyError
from mpcore.tools.experiment import Data, OptimizerSpec, load_experiment

GOOD = """
import numpy as np
from mpcore import Data, OptimizerSpec
optimizer = OptimizerSpec("adam", learning_rate=0.1)
batch = 4
def data():
    x = np.zeros((8, 3), "f4")
    return Data(x, np.zeros(8, "i4"), x, np.zeros(8, "i4"))
def build_torch():
    return None
"""


def write(folder: Path, text: str, name: str = "exp.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_file_gives_its_parts(tmp_path: Path) -> None:
    found = load_experiment(write(tmp_path, GOOD))
    assert (found.name, found.loss, found.steps, found.batch) == ("exp", "cross_entropy", 30, 4)
    assert found.optimizer.name == "adam"
    assert sorted(found.builders) == ["torch"]
    assert found.load_data().x_train.shape == (8, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "def data(:\n", r"exp.py could not be run \(line 1\): SyntaxError", id="syntax"
        ),
        pytest.param("1 / 0\n", "could not be run: ZeroDivisionError", id="raises"),
        pytest.param("import nothing_here\n", "No module named 'nothing_here'", id="import"),
        pytest.param("", r"must define a function data\(\)", id="no-data"),
        pytest.param(
            "def data(): pass\n", r"must define a function build_<backend>", id="no-builder"
        ),
        pytest.param(GOOD + "loss = 'hinge'\n", "`loss` must be one of", id="loss"),
        pytest.param(GOOD + "optimizer = 'sgd'\n", "must be an OptimizerSpec", id="optimizer"),
        pytest.param(GOOD + "steps = 0\n", "`steps` in exp.py must be a whole number", id="steps"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        load_experiment(write(tmp_path, text))


def test_missing_file_and_wrong_kind(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="does not exist"):
        load_experiment(tmp_path / "none.py")
    with pytest.raises(ExperimentError, match=r"must be Python \(\.py\), got 'exp.txt'"):
        load_experiment(write(tmp_path, GOOD, "exp.txt"))


def test_missing_builder_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(
        ExperimentError, match=r"lacks a function build_mindspore\(\); it has: build_t"
    ):
        load_experiment(write(tmp_path, GOOD)).builder("mindspore")


X, Y = np.zeros((4, 2), "f4"), np.zeros(4, "i4")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        pytest.param((X[:0], Y[:0], X, Y), "must hold at least one example", id="empty"),
        pytest.param((X, Y[:3], X, Y), "`data.y_train` must have 4 examples", id="unequal"),
        pytest.param(
            (np.array([[0.0], [np.nan]]), Y[:2], X, Y), "inf or NaN in example 1", id="nan"
        ),
        pytest.param((X, Y, [1.0], Y), "`data.x_test` must be a numpy array, got list", id="list"),
    ],
)
def test_bad_data(arrays: tuple, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Data(*arrays)


def test_unknown_layout() -> None:
    with pytest.raises(ExperimentError, match="did you mean 'channels_first'"):
        Data(X, Y, X, Y, layout="channel_first")


def test_batches_are_the_same_every_time() -> None:
    data = Data(np.arange(20, dtype="f4")[:, None], np.arange(20), X, Y)
    first, second = list(data.batches(3, 4, seed=1)), list(data.batches(3, 4, seed=1))
    for (x, y), (x2, y2) in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, x2)
        np.testing.assert_array_equal(x[:, 0].astype(int), y)
        np.testing.assert_array_equal(y, y2)
        assert len(set(y)) == 4
    assert len(next(data.batches(1, 50, seed=0))[0]) == 50


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "sdg"}, "did you mean 'sgd'"),
        ({"learning_rate": 0.0}, "`optimizer.learning_rate` must be > 0"),
        ({"momentum": 1.0}, r"must be in \[0, 1\)"),
        ({"betas": (0.9, 1.0)}, "`optimizer.betas`"),
        ({"eps": 0.0}, "`optimizer.eps` must be > 0"),
    ],
)
def test_bad_optimizers(fields: dict, message: str) -> None:
    with pytest.raises((ExperimentError, PolicyError), match=message):
        OptimizerSpec(**fields)
