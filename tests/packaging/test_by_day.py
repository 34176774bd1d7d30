"""What ``make test`` runs of dear tests: a cover of their cases, and of long ones those marked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import by_day
import pytest

TESTS = Path(__file__).parents[1]
SAMPLE = """
import pytest

@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", ["x", "y", "z"])
def test_product(a, b): pass

@pytest.mark.parametrize("a", range(9))
def test_cheap(a): pass

@pytest.mark.parametrize("a", range(2))
def test_long(a): pass

@pytest.mark.day
@pytest.mark.parametrize("a", range(2))
def test_long_and_wanted(a): pass

@pytest.mark.day(20)
@pytest.mark.parametrize("a", range(9))
def test_more_of_it(a): pass
"""
MEANS = {
    "test_product": by_day.SHARE / 3.1,
    "test_long": by_day.LONGEST + 0.1,
    "test_long_and_wanted": 9.0,
    "test_more_of_it": 6.0,
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with our conftest and the sample, as if each test had been measured."""
    folder = tmp_path_factory.mktemp("house")
    (folder / "tests").mkdir()
    for name in ("conftest.py", "seconds.json"):
        shutil.copy(TESTS / name, folder / "tests")
    shutil.copy(TESTS / "processes" / "by_day.py", folder)
    (folder / "tests" / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    means = {"numpy": {f"tests/test_sample.py::{name}": s for name, s in MEANS.items()}}
    text = json.dumps(means)
    (folder / "tests" / "seconds_of_cases.json").write_text(text, encoding="utf-8")
    lines = ("backend(name)", "nightly", "day")
    markers = "\n".join(["[pytest]", "pythonpath = .", "markers =", *(f"    {x}" for x in lines)])
    (folder / "pytest.ini").write_text(markers, encoding="utf-8")
    return folder


def collected(house: Path, *options: str) -> dict[str, set[str]]:
    """Return the cases of each function that would run."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests", *options]
    done = subprocess.run(command, cwd=house, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            function, _, case = line.partition("::")[2].rstrip("]").partition("[")
            found.setdefault(function, set()).add(case)
    return found


def test_a_day_runs_a_cover_and_the_night_all(house: Path) -> None:
    day = collected(house, "--by-day")
    assert {name: len(cases) for name, cases in day.items()} == {
        "test_product": 3,
        "test_cheap": 9,
        "test_long_and_wanted": 1,
        "test_more_of_it": 3,  # 20 s of 6 s each
    }
    assert {value for case in day["test_product"] for value in case.split("-")} == set("xyz123")
    everything = {
        "test_product": 9,
        "test_cheap": 9,
        "test_long": 2,
        "test_long_and_wanted": 2,
        "test_more_of_it": 9,
    }
    for options in ([], ["--nightly"], ["--by-day", "--nightly"]):
        found = collected(house, *options)
        assert {name: len(cases) for name, cases in found.items()} == everything


def test_a_cover_hangs_on_names_alone() -> None:
    cases = {f"{a}-{b}": frozenset({("a", a), ("b", b)}) for a in range(4) for b in range(4)}
    first = by_day.cover(cases, 4)
    assert first == by_day.cover(dict(reversed(cases.items())), 4)
    assert {pair for name in first for pair in cases[name]} == frozenset().union(*cases.values())
    assert first < by_day.cover(cases, 7)
    assert by_day.cover(cases, 99) == set(cases)
