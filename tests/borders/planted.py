"""Faults inside a step, and what is left behind them: the state before it, or the one after it.

``injected`` raises at one line out of those that our code and the optimizer run; ``interrupted``
sends this process a real SIGINT at some moment. ``Outcome`` counts what was found.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    State = Mapping[str, Any]


def package(name: str) -> str:
    """Return the folder of an imported package, as its files begin with it."""
    return str(Path(importlib.import_module(name).__file__).parent) + "/"


class PlantedError(MemoryError):
    """The fault that is planted; a MemoryError, as a full host raises it."""


@contextlib.contextmanager
def lines(folders: Sequence[str], at: int | None) -> Iterator[list[tuple[str, int]]]:
    """Collect the lines that run in files below ``folders``; raise PlantedError at line ``at``.

    Yields:
        (file, line) of each, in order; the last is where it was raised.
    """
    seen: list[tuple[str, int]] = []
    known: dict[str, bool] = {}

    def local(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            seen.append((frame.f_code.co_filename, frame.f_lineno))
            if at is not None and len(seen) == at + 1:
                msg = f"planted at line {frame.f_lineno} of {frame.f_code.co_filename}"
                raise PlantedError(msg)
        return local

    def begin(frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in known:
            known[name] = name.startswith(tuple(folders))
        return local if known[name] else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield seen
    finally:
        sys.settrace(before)


def interrupted(body: Callable[[], Any], after: float) -> bool:
    """Run ``body`` and press Ctrl-C once, ``after`` seconds from its start, unless it has ended.

    Python drops what is raised while it runs a callback of a weak reference or a ``__del__``, and
    reports it: a press at such a moment is lost there, and ``body`` goes on to its end.

    Returns:
        Whether it was pressed before ``body`` had ended.
    """
    main, go = threading.get_ident(), threading.Event()
    ended = False

    def press() -> None:
        go.wait()
        until = time.perf_counter() + after
        while time.perf_counter() < until and not ended:
            time.sleep(0.00002)
        if not ended:
            signal.pthread_kill(main, signal.SIGINT)

    came = False

    def handler(number: int, frame: object) -> None:
        nonlocal came
        if not ended:  # it came a moment too late: nobody is there to be interrupted
            came = True
            raise KeyboardInterrupt

    report = sys.unraisablehook

    def dropped(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:
            report(lost)

    before, sys.unraisablehook = signal.signal(signal.SIGINT, handler), dropped
    thread = threading.Thread(target=press)
    thread.start()
    try:
        try:
            go.set()
            body()
            ended = True
        except KeyboardInterrupt:
            ended = True
    finally:
        ended = True
        thread.join()
        time.sleep(0)
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = report
    return came


def differing(one: State, two: State) -> list[str]:
    """Return the keys in which two states differ by a bit, or that one of them lacks."""
    names = sorted({*one, *two})
    return [n for n in names if n not in one or n not in two or not _equal(one[n], two[n])]


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    return type(one) is type(two) and one == two


@dataclass
class Outcome:
    """What was found after many faults.

    Attributes:
        counts: ``"before"``, ``"after"``, ``"said"`` (neither, but the next call raises until
            something is loaded), ``"torn"`` (neither, without a word), ``"stuck"`` (no further
            step is possible), ``"none"`` (nothing was raised).
        bad: of the last two, what happened where.
    """

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, word: str, where: str) -> None:
        """Count one."""
        self.counts[word] += 1
        if word in ("torn", "stuck"):
            self.bad.append(f"{word}: {where}")

    def __str__(self) -> str:
        """Return the counts, and the first places."""
        return "\n".join([str(dict(self.counts)), *self.bad[:20]])


class Campaign:
    """Many outcomes, printed as they come and kept in one file of numbers."""

    def __init__(self, path: str, **about: object) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._about = {"cores": os.cpu_count(), "python": platform.python_version(), **about}

    def add(self, kind: str, where: str, outcome: Outcome) -> None:
        """Print one outcome, and write all so far."""
        print(kind, where, outcome, flush=True)
        row = {"kind": kind, "where": where, **dict(outcome.counts), "bad": outcome.bad}
        self._rows.append(row)
        if self._path:
            found: dict[str, Counter[str]] = {}
            for each in self._rows:
                counts = {k: v for k, v in each.items() if isinstance(v, int)}
                found.setdefault(each["kind"], Counter()).update(counts)
            load = f"{os.getloadavg()[0]:.1f}"
            about = {**self._about, "load at the end": load}
            text = json.dumps({"about": about, "found": found, "runs": self._rows}, indent=1)
            Path(self._path).write_text(text + "\n", encoding="utf-8")
