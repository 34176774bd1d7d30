"""The real ``mpcore doctor`` in a process of its own, with stand-ins for what can go wrong.

A backend ``north`` is plugged in by entry point like any other: numpy's probe, and whatever the
test adds to it. The last tests start the real frameworks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from mpcore.tools.doctor.doctor import BUSY

INIT = """
from mpcore_numpy import NumpyBackend as Base


class Backend(Base):
    name = "north"
    probe = None
"""

HAS_PROBE = """
    def probe(self):
        import {package}.probe

        return {package}.probe
"""

PROBE = """
from mpcore_numpy.probe import *
import mpcore_numpy.probe as plain
"""

# Frameworks that are installed here, made invisible: as if there were none.
BLOCK = """
import sys
from importlib.machinery import PathFinder


class Finder:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tensorflow", "keras", "mindspore"):
            return None
        return PathFinder.find_spec(name, path, target)

    find_distributions = PathFinder.find_distributions
    invalidate_caches = PathFinder.invalidate_caches


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


class Shell:
    """A working directory, a folder for plug-ins, and the command run in them."""

    def __init__(self, folder: Path) -> None:
        self.work, self.plugins, self.scratch = folder / "work", folder / "plugins", folder / "tmp"
        for path in (self.work, self.plugins, self.scratch):
            path.mkdir()
        self.environment = os.environ | {
            "PYTHONPATH": str(self.plugins),
            "TMPDIR": str(self.scratch),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
        }

    def distribution(self, name: str, version: str, entry_points: str = "") -> None:
        folder = self.plugins / f"{name}-{version}.dist-info"
        folder.mkdir()
        meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(meta, encoding="utf-8")
        (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")

    def plug_in(self, probe: str | None = "", init: str = "", name: str = "north") -> None:
        points = f"[mpcore.backends]\n{name} = {name}:Backend\n"
        self.distribution(f"plug_{name}", "1.0", points)
        package = self.plugins / name
        package.mkdir()
        text = textwrap.dedent(init) + INIT
        if probe is not None:
            text += HAS_PROBE.format(package=name)
            (package / "probe.py").write_text(PROBE + textwrap.dedent(probe), encoding="utf-8")
        (package / "__init__.py").write_text(text, encoding="utf-8")

    def command(self, *arguments: str) -> list[str]:
        code = "from mpcore.cli import main; main()"
        return [sys.executable, "-P", "-c", code, "doctor", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.work,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr
        assert list(self.scratch.iterdir()) == []
        assert not (self.work / "rank_0").exists()
        return done

    def answer(self, *arguments: str, code: int = 0, **environment: str) -> dict[str, Any]:
        done = self.run("--quick", "--format", "json", *arguments, **environment)
        assert done.returncode == code, done.stdout[-2000:] + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["exit_code"] == code
        return answer

    def north(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Return what was found about north, with the problems of the whole."""
        answer = self.answer("--backend", "north", *arguments, code=code)
        (found,) = answer["frameworks"]
        problems = [f["text"] for f in answer["findings"] if f["kind"] == "problem"]
        return found | {"problems": problems}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_third_party_backend_offers_a_probe(shell: Shell) -> None:
    shell.plug_in()
    found = shell.north()
    assert (found["status"], found["versions"].keys()) == ("ok", {"numpy"})
    facts = {(fact["family"], fact["dtype"]): fact for fact in found["facts"]}
    assert len(facts) == 12
    assert facts["matmul", "float32"]["level"] == "native"
    assert facts["matmul", "bfloat16"]["level"] == "simulated"
    assert all(fact["seconds"] == [] for fact in facts.values())


def test_speed_is_measured_in_turn(shell: Shell) -> None:
    shell.plug_in("families = ('softmax',)")
    done = shell.run("--format", "json", "--backend", "north")
    (found,) = json.loads(done.stdout)["frameworks"]
    float32, _, float16 = found["facts"]
    assert len(float32["seconds"]) == len(float16["seconds"]) >= 3
    assert float16["speed"]["low"] <= float16["speed"]["median"] <= float16["speed"]["high"]
    busy = found["load"] >= BUSY
    assert found["recommended"] == (None if busy else "float32")  # softmax alone pays nothing


def test_the_answer_for_people(shell: Shell) -> None:
    shell.plug_in("families = ('softmax',)")
    done = shell.run("--backend", "north")
    assert done.returncode == 0
    for words in ("north: start", "softmax", "simulated", "advice: on this CPU", "no problems"):
        assert words in done.stdout


def test_json_is_alone_on_standard_output_though_the_framework_talks(shell: Shell) -> None:
    shell.plug_in(init="print('a framework that talks')")
    done = shell.run("--format", "json", "--quick", "--backend", "north")
    assert json.loads(done.stdout)["format"] == "mpcore-doctor"
    assert "north: ok" in done.stderr


def test_a_backend_without_a_probe_is_a_row(shell: Shell) -> None:
    shell.plug_in(probe=None)
    found = shell.north()
    assert found["status"] == "no probe"
    assert "the north backend offers nothing to examine" in found["error"]


def test_a_missing_framework_is_a_row_and_a_problem_only_if_asked_for(shell: Shell) -> None:
    shell.plug_in(init="import no_such_framework")
    found = shell.north(code=1)
    assert found["status"] == "missing"
    assert found["problems"] == [f"not installed ({found['error']})"]


def test_a_framework_that_misses_a_package_is_broken(shell: Shell) -> None:
    (shell.plugins / "framework.py").write_text("import no_such_package", encoding="utf-8")
    shell.plug_in(init="import framework")
    found = shell.north(code=1)
    assert found["status"] == "failed"
    assert "no_such_package" in found["error"]


def test_a_framework_that_breaks_on_import_is_a_row(shell: Shell) -> None:
    shell.plug_in(init="raise SystemError('compiled using NumPy 1.x')")
    found = shell.north(code=1)
    assert found["problems"] == ["SystemError: compiled using NumPy 1.x"]


@pytest.mark.parametrize("end", ["os.abort()", "os.kill(os.getpid(), 11)", "sys.exit(3)"])
def test_a_crash_keeps_what_was_found_before_and_says_where(shell: Shell, end: str) -> None:
    shell.plug_in(
        f"""
        import os, sys

        def prepare(family, dtype, case, *, grad):
            if (family, dtype) == ("norm", "float16"):
                {end}
            return plain.prepare(family, dtype, case, grad=grad)
        """
    )
    found = shell.north(code=1)
    assert len(found["facts"]) == 8
    assert found["facts"][-1]["dtype"] == "bfloat16"
    (problem,) = found["problems"]
    assert "(at: norm in float16)" in problem


def test_a_hang_ends_at_the_time_limit(shell: Shell) -> None:
    shell.plug_in(
        """
        import time

        def prepare(family, dtype, case, *, grad):
            time.sleep(3600)
        """
    )
    found = shell.north("--time-limit", "6", code=1)
    (problem,) = found["problems"]
    assert problem == "stopped after the time limit of 6 s (at: matmul in float32)"


def test_wrong_numbers_are_found(shell: Shell) -> None:
    shell.plug_in(
        """
        def read(tensor):
            values, dtype = plain.read(tensor)
            return values * (1.0 if dtype == "float32" else 1.5), dtype
        """
    )
    facts = shell.north()["facts"]
    levels = {(fact["family"], fact["dtype"]): fact["level"] for fact in facts}
    assert levels["elementwise", "float16"] == "wrong"
    assert levels["elementwise", "float32"] == "native"


def test_the_other_frameworks_go_on(shell: Shell) -> None:
    shell.plug_in(init="import os; os.abort()")
    answer = shell.answer("--backend", "north,numpy", code=1)
    assert [f["status"] for f in answer["frameworks"]] == ["failed", "ok"]


def test_no_framework_at_all(shell: Shell) -> None:
    (shell.plugins / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    answer = shell.answer()
    status = {f["name"]: f["status"] for f in answer["frameworks"]}
    assert status == dict.fromkeys(("jax", "mindspore", "tensorflow", "torch"), "missing") | {
        "numpy": "ok"
    }


@pytest.mark.parametrize(("numpy", "code"), [("2.4.6", 1), ("1.26.4", 0)])
def test_numpy_2_under_mindspore(shell: Shell, numpy: str, code: int) -> None:
    shell.distribution("numpy", numpy)
    shell.distribution("mindspore", "2.10.0")
    (shell.plugins / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    answer = shell.answer(code=code)
    assert answer["machine"]["packages"]["numpy"] == numpy
    problems = [f for f in answer["findings"] if f["kind"] == "problem"]
    assert len(problems) == code
    assert all("numpy<2" in f["remedy"] for f in problems)


# --- input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "torhc"), "did you mean 'torch'?"),
        (("--backend", "numpy,numpy"), "each one once"),
        (("--time-limit", "0"), "--time-limit"),
        (("--time-limit", "nan"), "--time-limit"),
        (("--output", "no/such/folder.json"), "`--output` must lie in a folder"),
        (("--output", "mine.txt"), "is something else"),
        (("--output", "."), "is something else"),
        (("--sped",), "--sped"),
    ],
)
def test_wrong_input_is_one_line_and_measures_nothing(
    shell: Shell, arguments: tuple[str, ...], words: str
) -> None:
    mine = shell.work / "mine.txt"
    mine.write_text("mine", encoding="utf-8")
    done = shell.run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert mine.read_text(encoding="utf-8") == "mine"


def test_output_writes_the_same_answer_and_over_an_earlier_one(shell: Shell) -> None:
    shell.plug_in("families = ('softmax',)")
    for _ in range(2):
        answer = shell.answer("--backend", "north", "--output", "here.json")
        saved = json.loads((shell.work / "here.json").read_text(encoding="utf-8"))
        assert saved == answer


def test_interrupted_it_leaves_nothing_behind(shell: Shell) -> None:
    shell.plug_in(
        """
        import os, pathlib, time

        def prepare(family, dtype, case, *, grad):
            pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
            time.sleep(3600)
        """
    )
    pid_file = shell.work / "pid"
    child = subprocess.Popen(
        shell.command("--backend", "north"),
        cwd=shell.work,
        env=shell.environment | {"PID_FILE": str(pid_file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a test runner in the background ignores these, and its children inherit that
        preexec_fn=lambda: [
            signal.signal(number, handler)
            for number, handler in (
                (signal.SIGINT, signal.default_int_handler),
                (signal.SIGTERM, signal.SIG_DFL),
            )
        ],
    )
    try:
        _until(lambda: pid_file.exists() and pid_file.read_text() != "")
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=300)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, errors) == (130, "stopped\n")
    assert list(shell.scratch.iterdir()) == []
    worker = int(pid_file.read_text())
    _until(lambda: not Path(f"/proc/{worker}").exists())


def _until(true: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


# --- the frameworks themselves ----------------------------------------------------------------


def _is_right(found: dict[str, Any]) -> None:
    """Judge what was measured of one framework."""
    levels = {(fact["family"], fact["dtype"]): fact for fact in found["facts"]}
    for (_, dtype), fact in levels.items():
        if dtype == "float32":
            assert fact["level"] == "native", fact
        if fact["error"] == "inf" or float(fact["error"]) > 1:
            # nn.LSTM's float16 gradients in eager mode, mindspore 2.10.0
            assert (found["name"], dtype) == ("mindspore", "float16"), fact
            assert fact["family"] in ("lstm", "lstm_long"), fact
    if found["name"] == "mindspore":
        assert levels["lstm", "float16"]["level"] == "wrong"
        assert {f["level"] for f in found["facts"] if f["dtype"] == "bfloat16"} == {"simulated"}


@pytest.mark.slow
def test_a_real_framework_quickly(shell: Shell) -> None:
    (found,) = shell.answer("--backend", "torch")["frameworks"]
    assert found["status"] == "ok"
    _is_right(found)


@pytest.mark.slow
def test_everything_with_speed(shell: Shell) -> None:
    done = shell.run("--format", "json", "--output", "all.json")
    assert done.returncode == 0, done.stderr
    here = [f for f in json.loads(done.stdout)["frameworks"] if f["status"] != "missing"]
    assert {f["name"] for f in here} == {"mindspore", "numpy", "tensorflow", "torch"}
    for found in here:
        assert found["status"] == "ok"
        _is_right(found)
        ran = [f for f in found["facts"] if not f["refused"]]
        assert ran
        assert all(len(f["seconds"]) >= 3 for f in ran)
        assert found["advice"].startswith("on this ")
