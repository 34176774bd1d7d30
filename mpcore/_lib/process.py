"""Workers: a process of its own for what may crash, hang or leave its state behind.

The parent starts ``python -m MODULE TASK`` and reads JSON lines; the worker's own prints, and
those of its framework, go to a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.interrupts import Held
from mpcore._lib.machine import onednn_variables
from mpcore.errors import MpcoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "Ended",
    "age",
    "end_with_parent",
    "ended_cleanly",
    "open_events",
    "run_worker",
    "serve",
    "thread_variables",
    "told",
]

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GLOG_v": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Keras puts them into its errors

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


@dataclass(frozen=True)
class Ended:
    """How a worker ended.

    Attributes:
        code: exit code, negative for a signal.
        late: whether it was ended because its time was over.
        how: the end in words; empty if it ended by itself with code 0.
    """

    code: int
    late: bool
    how: str


# --- the parent's side ----------------------------------------------------------------------


def run_worker(
    module: str,
    task: str,
    log: Path,
    *,
    time_limit: float,
    on_event: Callable[[dict[str, Any]], None],
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Ended:
    """Run one worker to its end; whatever happens here, it does not outlive this call.

    Args:
        module: what ``python -m`` starts; it calls ``serve``.
        task: its only argument.
        log: file for everything that it prints.
        time_limit: seconds after which it is killed.
        on_event: called with each event, in the worker's order.
        environment: variables on top of this process's own.
        python: interpreter that runs it; it has its own packages.
    """
    # -P: a file of the user's working directory must not pass for a module
    command = [python, "-P", "-m", module, task]
    late = threading.Event()
    child: subprocess.Popen[str] | None = None

    def stop() -> None:
        late.set()
        if child is not None:
            _kill(child)

    watch = threading.Timer(time_limit, stop)
    try:
        with log.open("wb") as stream, Held():  # one that was started is known, and so is ended
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stream,
                stdin=subprocess.PIPE,  # the worker ends when this closes
                text=True,
                env={**_QUIET, **onednn_variables(), **os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C comes to us alone, and we end the whole group
            )
        watch.start()
        for event in _events(child):
            on_event(event)
        child.wait()
    finally:
        watch.cancel()
        if child is not None:
            _kill(child)
            child.wait()
            for pipe in filter(None, (child.stdin, child.stdout)):
                pipe.close()
    if late.is_set():
        how = f"stopped after the time limit of {time_limit:g} s"
    else:
        how = _death(child.returncode, log) if child.returncode else ""
    return Ended(child.returncode, late.is_set(), how)


def age() -> float:
    """Return the seconds since this process was started; where that is not told, 0."""
    stat, uptime = Path("/proc/self/stat"), Path("/proc/uptime")
    if not stat.exists():
        return 0.0
    ticks = float(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    up = float(uptime.read_text(encoding="utf-8").split()[0])
    return max(0.0, up - ticks / os.sysconf("SC_CLK_TCK"))


def thread_variables(count: int | None) -> dict[str, str]:
    """Return the environment that gives every framework ``count`` threads; None leaves it be."""
    return dict.fromkeys(_THREADS, str(count)) if count else {}


def _events(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    for line in child.stdout or ():
        with contextlib.suppress(ValueError):  # the last line of a worker killed while it wrote
            yield json.loads(line)


def _kill(child: subprocess.Popen[str]) -> None:
    """End a worker and whatever it started."""
    if not hasattr(os, "killpg"):  # Windows
        child.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _death(code: int, log: Path) -> str:
    """Return in words how a worker ended that left no result."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = {
            "SIGSEGV": " (a crash in native code)",
            "SIGABRT": " (native code gave up)",
            "SIGILL": " (an instruction that this CPU lacks)",
            "SIGKILL": " (out of memory?)",
        }
        return f"the process was killed by {name}{hint.get(name, '')}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"the process ended with code {code}: {(lines or ['it printed nothing'])[-1][:300]}"


@contextlib.contextmanager
def ended_cleanly() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end us by an exception, so that everything is removed."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the worker's side ----------------------------------------------------------------------


def serve(
    work: Callable[[Callable[..., None]], None],
    fail: Callable[[BaseException, Callable[..., None]], None] | None = None,
) -> int:
    """Do a worker's work, which ends with the parent; return the exit code, 0 or 1.

    Args:
        work: called with ``emit``, which sends an event to the parent.
        fail: called with what ``work`` raised, and ``emit``; ``emit(error=...)`` if None.
    """
    end_with_parent()
    emit = open_events()
    try:
        work(emit)
    except (Exception, SystemExit) as exc:  # every failure becomes a part of the answer
        traceback.print_exc()
        if fail is None:
            emit(error=told(exc))
        else:
            fail(exc, emit)
        return 1
    return 0


def told(exc: BaseException) -> str:
    """Return an error in one line; our own errors say enough without the name of their class."""
    text = str(exc) if isinstance(exc, MpcoreError) else f"{type(exc).__name__}: {exc}"
    return " ".join(_COLOURS.sub("", text).split())


def end_with_parent() -> None:
    """End this process when the one that started it is gone, however it went."""
    held = os.dup(0)  # a pipe that only the parent writes to: it ends when the parent does
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def follow() -> None:
        os.read(held, 1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def open_events() -> Callable[..., None]:
    """Return ``emit(**event)``; from now on, standard output goes to standard error."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a framework's own prints must not mix with our events

    def emit(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")

    return emit
