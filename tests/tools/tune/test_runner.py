"""How long a worker of a search may run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpcore._lib.process import Ended
from mpcore.errors import ExperimentError
from mpcore.tools.tune.runner import Runner
from mpcore.tools.tune.task import Task


@pytest.mark.parametrize(
    ("budget", "gone", "limit"),
    [(100.0, (0.0, 0.0), 103.0), (20.0, (4.0, 1.2), 15.4), (2.0, (4.0, 1.2), 0.1)],
)
def test_what_is_spent_and_what_ending_takes_are_of_the_budget(
    budget: float,
    gone: tuple[float, float],
    limit: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []

    def run(*_: Any, time_limit: float, **__: Any) -> Ended:
        limits.append(time_limit)
        return Ended(-9, True, "stopped")

    monkeypatch.setattr("mpcore.tools.tune.runner.run_worker", run)
    runner = Runner(tmp_path / "e.py", Task("", budget=budget), tmp_path / "l", 1, print, *gone)
    with pytest.raises(ExperimentError, match="was spent before anything was measured"):
        runner.run()
    assert limits == pytest.approx([limit])
