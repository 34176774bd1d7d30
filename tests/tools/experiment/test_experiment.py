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


BATCHED = np.zeros((4, 3, 5), "f4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("loss = 'mse'\ndef loss_torch(model, x, y): pass\n", "left out", id="both"),
        pytest.param("label_smoothing = 1.0\n", r"must be in \[0, 1\), got 1.0", id="smoothing"),
        pytest.param(
            "label_smoothing = 0.1\nloss = 'mse'\n", "ops.cross_entropy takes it", id="smooth mse"
        ),
        pytest.param("clip_norm = 0\n", "`clip_norm` in exp.py must be > 0", id="clip"),
        pytest.param("micro_batches = 0\n", "whole number >= 1, got 0", id="micro-batches"),
        pytest.param("schedule = 0.1\n", "must be a function of the step, got 0.1", id="schedule"),
    ],
)
def test_mistakes_in_what_a_file_may_say(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        load_experiment(write(tmp_path, GOOD + text))


@pytest.mark.parametrize(
    ("text", "name", "neutral"),
    [
        ("def loss(ops, model, x, y): return 'all'\n", "torch_a", True),
        ("def loss_torch(model, x, y): return 'torch'\n", "torch_a", False),
        ("def loss_torch_a(model, x, y): return 'a'\ndef loss_torch(m, x, y): 1 / 0", "torch_a", 0),
    ],
)
def test_a_loss_of_its_own(tmp_path: Path, text: str, name: str, neutral: bool) -> None:
    found = load_experiment(write(tmp_path, GOOD + text))
    assert found.loss == "own"
    function, is_neutral = found.own_loss(name)
    assert is_neutral == neutral
    assert function(*[None] * (4 if neutral else 3)) in ("all", "torch", "a")


def test_a_loss_that_a_framework_lacks(tmp_path: Path) -> None:
    found = load_experiment(write(tmp_path, GOOD + "def loss_torch(model, x, y): pass\n"))
    with pytest.raises(ExperimentError, match=r"write loss_mindspore\(model, \*batch\), or loss"):
        found.own_loss("mindspore")


@pytest.mark.parametrize("value", ["'much'", "-1", "float('nan')", "1 / 0"])
def test_a_schedule_returns_a_rate(tmp_path: Path, value: str) -> None:
    found = load_experiment(write(tmp_path, GOOD + f"def schedule(step): return {value}\n"))
    with pytest.raises(ExperimentError, match="schedule"):
        found.rate(3)


def test_several_models_of_a_backend(tmp_path: Path) -> None:
    text = GOOD.replace("def build_torch()", "def build_torch_a()") + "def build_torch_b(): ...\n"
    found = load_experiment(write(tmp_path, text))
    assert sorted(found.builders) == ["torch_a", "torch_b"]
    with pytest.raises(ExperimentError, match="which of torch_a, torch_b, got 'torch'"):
        found.builder("torch")


@pytest.mark.parametrize(
    ("arrays", "layouts", "message"),
    [
        pytest.param(((X, Y), Y, X, Y), {}, "x_test` must hold 2 arrays like x_train", id="count"),
        pytest.param(
            ((X, X[:3]), Y, (X, X), Y), {}, "x_train` must have 4 examples", id="examples"
        ),
        pytest.param(((), Y, (), Y), {}, "at least one array", id="empty"),
        pytest.param(((X, [1]), Y, (X, X), Y), {}, r"x_train\[1\]` must be a numpy", id="list"),
        pytest.param(
            (X, Y, X, Y), {"layout": "channels_first"}, "1 to 3 axes.*layout=", id="no space"
        ),
        pytest.param((X, Y, X, Y), {"layout": "time_last"}, "must be one of", id="unknown"),
        pytest.param(
            ((X, BATCHED), Y, (X, BATCHED), Y),
            {"layout": ("",)},
            "or 2 like the arrays",
            id="words",
        ),
        pytest.param(
            (X, Y, X, Y), {"target_layout": "channels_first"}, "y_train` must be", id="classes"
        ),
    ],
)
def test_bad_data_of_several_arrays(arrays: tuple, layouts: dict, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Data(*arrays, **layouts)


def test_a_batch_of_several_arrays_has_the_same_rows() -> None:
    count = np.arange(4, dtype="f4")
    data = Data((count, count[:, None]), count, (count, count[:, None]), count)
    x, y = next(data.batches(1, 3, 0))
    assert x[0].tolist() == x[1][:, 0].tolist() == y.tolist()
    assert data.batch_layout == ("", "", "")
