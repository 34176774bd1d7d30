"""Workers end with the one who started them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpcore._lib import process


def test_an_interrupt_while_a_worker_starts_ends_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(process.subprocess, "Popen", Interrupted)
    # A job in the background of a shell, or under nohup, has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.run_worker("http.server", "0", tmp_path / "log", time_limit=60, on_event=print)
    finally:
        signal.signal(signal.SIGINT, before)
    (child,) = started
    assert child.returncode == -signal.SIGKILL


def test_events_arrive_in_order_and_the_end_is_told(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    script = tmp_path / "told.py"
    script.write_text('print(\'{"step": 1}\\n{"step": 2}\', flush=True)\nraise SystemExit(3)\n')
    path = {"PYTHONPATH": str(tmp_path)}
    ended = process.run_worker(
        "told", "", tmp_path / "log", time_limit=60, on_event=seen.append, environment=path
    )
    assert seen == [{"step": 1}, {"step": 2}]
    assert (ended.code, ended.late) == (3, False)
    assert ended.how == "the process ended with code 3: it printed nothing"


def test_an_error_is_told_in_one_line_without_colours() -> None:
    exc = TypeError("Exception in Net.call().\n\n\x1b[1mInput 'y' has type bfloat16\x1b[0m\n")
    told = process.told(exc)
    assert told == "TypeError: Exception in Net.call(). Input 'y' has type bfloat16"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="told by Linux alone")
def test_a_process_knows_how_long_ago_it_was_started() -> None:
    told = "import time; time.sleep(0.5); from mpcore._lib.process import age; print(age())"
    printed = subprocess.run([sys.executable, "-c", told], stdout=subprocess.PIPE, check=True)
    assert 0.45 < float(printed.stdout) < 60
