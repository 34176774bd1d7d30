"""Sides: what their text means, and what is refused."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from mpcore.backend.parts import MODES
from mpcore.errors import BackendMissingError, ExperimentError
from mpcore.tools.compare.lock import locked
from mpcore.tools.experiment.configuration import (
    Configuration,
    check_installed,
    read_configurations,
)


@pytest.mark.parametrize(
    ("text", "configuration"),
    [
        ("torch", Configuration("torch")),
        ("torch:compiled", Configuration("torch", "compiled")),
        ("tensorflow:eager", Configuration("tensorflow", "eager")),
        ("torch:cuda:1", Configuration("torch", device="cuda:1")),
        ("mindspore:compiled+Ascend:0", Configuration("mindspore", "compiled", "Ascend:0")),
        (f"torch@{sys.executable}", Configuration("torch", python=sys.executable)),
        (
            f"torch:compiled+cpu@{sys.executable}",
            Configuration("torch", "compiled", "cpu", sys.executable),
        ),
    ],
)
def test_text_and_side_round_trip(text: str, configuration: Configuration) -> None:
    assert Configuration.parse(text) == configuration
    assert str(configuration) == text
    assert configuration.interpreter == sys.executable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("toch:compiled", "did you mean 'torch'"),
        ("torch:eager+compiled", "one mode, got two"),
        ("torch:cuda+cpu", "one device, got two"),
        ("torch@/nowhere/python", "must name a Python interpreter after '@'"),
        ("torch@/", "must name a Python interpreter after '@'"),
    ],
)
def test_wrong_texts(text: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Configuration.parse(text)


def test_each_side_once() -> None:
    with pytest.raises(ExperimentError, match="each one once, got 'torch' 2 times"):
        read_configurations(["torch", "numpy", "torch"])
    assert len(read_configurations(["torch", "torch:compiled"])) == 2


def test_a_framework_of_another_interpreter_is_not_looked_for_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpcore.tools.experiment.configuration.find_spec", lambda _: None)
    with pytest.raises(BackendMissingError, match="pip install"):
        check_installed([Configuration("torch")])
    check_installed([Configuration("torch", python=sys.executable)])


def test_numpy_has_no_modes() -> None:
    assert MODES.find("numpy") is None


def _hold(folder: str, ready: object, go: object) -> None:
    with locked(Path(folder)):
        ready.set()  # type: ignore[attr-defined]
        go.wait(300)  # type: ignore[attr-defined]


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path / "a"), ready, go))
    other.start()
    try:
        assert ready.wait(300)
        with (
            pytest.raises(ExperimentError, match="another comparison writes"),
            locked(tmp_path / "b" / ".." / "a"),
        ):
            pass
        with locked(tmp_path / "b"):
            pass
    finally:
        go.set()
        other.join()
    with locked(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())  # nothing of it lies beside the report
