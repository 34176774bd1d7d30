"""The pool of ``make test``: every test is in one shard, a failing suite is told and the last."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import stopwatch

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "tests" / "suites.py"
_SPEC = importlib.util.spec_from_file_location("suites", SUITES)
suites = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(suites)


def collected(*options: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "tests/core/policy",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_each_test_is_in_one_shard():
    parts = [collected("--shard", f"{part}/3") for part in (1, 2, 3)]
    assert all(parts)
    assert sorted(test for part in parts for test in part) == sorted(collected())


@pytest.mark.parametrize("text", ["0/2", "3/2", "half", "1"])
def test_a_shard_that_is_none_is_refused(text):
    command = [sys.executable, "-m", "pytest", "tests/core/policy", "--shard", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "`--shard` must be I/N" in done.stderr


def suite(folder: Path, name: str, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SUITES, "run", folder, name, sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def summary(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SUITES, "summary", folder, *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_failing_suite_shows_its_output_and_stands_last(tmp_path: Path):
    bad = suite(tmp_path, "bad", "print('2 failed, 3 passed in 1.5s'); raise SystemExit(3)")
    good = suite(tmp_path, "good", "print('=== 7 passed, 9 deselected in 0.10s ===')")
    assert (bad.returncode, good.returncode) == (3, 0)
    assert "2 failed" in bad.stdout
    assert "7 passed" not in good.stdout
    told = summary(tmp_path, "bad", "good")
    rows = [line.split() for line in told.stdout.splitlines() if line]
    assert [(row[0], row[1], row[-1]) for row in rows[1:4]] == [
        ("good", "7", "ok"),
        ("bad", "5", "FAILED"),
        ("all", "12", "FAILED"),
    ]
    assert told.stdout.splitlines()[-1].startswith("failed: bad;")
    assert told.returncode == 1
    assert summary(tmp_path, "good").returncode == 0


def test_a_suite_that_never_ran_has_failed(tmp_path: Path):
    told = summary(tmp_path, "lost")
    assert told.returncode == 1
    assert "failed: lost" in told.stdout


def test_each_test_of_a_run_is_measured(tmp_path: Path):
    output = tmp_path / "new" / "one.tests.json"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "tests/core/test_machine.py"]
    done = subprocess.run(
        [*command, "--measure", output], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    told = json.loads(output.read_text())
    assert told["group"] == "numpy not slow"
    assert f"{len(told['tests'])} passed" in done.stdout
    assert all(nodeid.startswith("tests/core/test_machine.py::") for nodeid in told["tests"])


def test_processes_count_while_they_run_and_afterwards():
    before = stopwatch.started()
    code = "sum(range(10_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        running = stopwatch.started()
    assert before < running
    assert stopwatch.started() > running - 0.05  # the system rounds to ticks of 0.01 s, twice


def test_what_a_run_measured_is_kept_by_group_and_file(tmp_path: Path):
    here = "tests/packaging/test_suites.py"
    for name, spent in (("a", 1.0), ("b", 0.5)):
        tests = {f"{here}::one": spent, f"{here}::two": 2.0}
        for whole, factor in ((False, 1), (True, 10)):
            told = {
                "group": "numpy",
                "all": whole,
                "tests": {k: factor * s for k, s in tests.items()},
            }
            (tmp_path / f"{name}{factor}.tests.json").write_text(json.dumps(told))
    kept, cases = tmp_path / "seconds.json", tmp_path / "cases.json"
    kept.write_text('{"numpy": {"tests/gone.py": 9.0}, "torch": {}}')
    cases.write_text(json.dumps({"numpy": {f"{here}::one": 1.0, f"{here}::two": 1.0}}))
    assert suites.seconds(tmp_path, kept, cases) == 0
    assert json.loads(kept.read_text()) == {"numpy": {here: 5.5}, "torch": {}}
    assert json.loads(cases.read_text()) == {"numpy": {f"{here}::one": 7.5, f"{here}::two": 20.0}}


def test_a_day_says_what_a_case_takes_of_functions_that_are_new(tmp_path: Path):
    here = "tests/packaging/test_suites.py"
    tests = {f"{here}::new[a]": 3.0, f"{here}::new[b]": 5.0, f"{here}::known[a]": 9.0}
    told = {"group": "numpy", "all": False, "tests": {**tests, f"{here}::cheap": 0.1}}
    (tmp_path / "a.tests.json").write_text(json.dumps(told))
    kept, cases = tmp_path / "seconds.json", tmp_path / "cases.json"
    cases.write_text(json.dumps({"numpy": {f"{here}::known": 2.0}}))
    assert suites.seconds(tmp_path, kept, cases) == 0
    assert json.loads(cases.read_text()) == {"numpy": {f"{here}::known": 2.0, f"{here}::new": 4.0}}
