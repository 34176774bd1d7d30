"""The blocks of docs/quick-start.md, run as a reader would: one script for each framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import mpcore as warm_mpcore
from pages import blocks

PAGE = "docs/quick-start.md"


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("section", ["PyTorch", "tf.keras", "MindSpore"])
@pytest.mark.day
def test_the_blocks_run(section: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks(PAGE, section), encoding="utf-8")
    ended = run(sys.executable, "mine.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "False" in ended.stdout  # the step that overflows was skipped,
    assert "forward" in ended.stdout  # and diagnosed
    assert (tmp_path / "run.amp").exists()


@pytest.mark.slow
def test_the_experiment_of_the_page_compares(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = blocks(PAGE, "The same model in several frameworks")
    (tmp_path / "my_experiment.py").write_text(script, encoding="utf-8")
    mpcore = Path(sys.executable).with_name("mpcore")
    explained = run(mpcore, "explain", "my_experiment.py", folder=tmp_path)
    assert explained.returncode == 0, explained.stderr
    request.getfixturevalue("warm_workers")  # dozens of processes, all of them as above
    compared = warm_mpcore(tmp_path, "compare", "my_experiment.py", OMP_NUM_THREADS="1")
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("same") >= 3
    assert (tmp_path / "compare-report" / "report.html").exists()
