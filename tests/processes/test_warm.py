"""A warm interpreter does what a real one does, but for the time that imports take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

if not hasattr(os, "pidfd_open"):
    pytest.skip("warm interpreters need Linux", allow_module_level=True)

SEES = """
import json, os, sys, tempfile
paths = [path for path in sys.path if path in ("", os.getcwd(), os.environ.get("PYTHONPATH"))]
print(json.dumps([sys.argv, paths, os.environ.get("MINE"), os.getcwd(), tempfile.gettempdir()]))
print(__name__, sys.stdin.read(), sys.stdout.isatty(), file=sys.stderr)
"""


def run(python: str, folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=os.environ | environment,
        input="given",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-c", SEES, "a", "b c"], id="code"),
        pytest.param(["-P", "-c", SEES], id="code, no folder on the path"),
        pytest.param(["-m", "sees", "--x"], id="module"),
        pytest.param(["sees.py", "ä"], id="script"),
        pytest.param(["-c", "print('out'); raise SystemExit"], id="exit"),
        pytest.param(["-c", "raise SystemExit(300)"], id="large code"),
        pytest.param(["-c", "raise SystemExit('words')"], id="exit with words"),
        pytest.param(["-c", "import os; print('lost'); os._exit(7)"], id="hard exit"),
        pytest.param(["-c", "import os; os.kill(os.getpid(), 11)"], id="killed"),
        pytest.param(["-c", "import atexit; atexit.register(print, 'end')"], id="at exit"),
    ],
)
def test_a_warm_process_is_as_a_new_one(
    warm_python: str, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "sees.py").write_text(SEES, encoding="utf-8")
    (tmp_path / "own").mkdir()
    given = {"MINE": "1", "PYTHONPATH": str(tmp_path / "own"), "TMPDIR": str(tmp_path)}
    real = run(sys.executable, tmp_path, *arguments, **given)
    assert run(warm_python, tmp_path, *arguments, **given) == real


def test_an_exception_is_told_with_its_traceback(warm_python: str, tmp_path: Path) -> None:
    code, out, err = run(warm_python, tmp_path, "-c", "1 / 0")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_processes_share_nothing(warm_python: str, tmp_path: Path) -> None:
    first, second = (
        run(warm_python, tmp_path, "-c", "import random, os; print(random.random(), os.getpid())")
        for _ in range(2)
    )
    assert first[1].split()[0] != second[1].split()[0]
    assert first[1].split()[1] != second[1].split()[1]


def test_who_is_killed_takes_its_process_along(warm_python: str, tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    asking = subprocess.Popen([warm_python, "-c", code], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    pid = int(asking.stdout.readline())
    asking.kill()
    asking.communicate()
    end = time.monotonic() + 300
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
