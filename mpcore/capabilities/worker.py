"""One framework examined, in a process of its own.

Started as ``python -m mpcore.capabilities.worker TASK``; every fact goes out as soon as it is
known, so that a crash or a hang costs only what comes after it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from importlib import metadata
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import serve
from mpcore.backend.backend import load_backend
from mpcore.backend.parts import PROBE, PartMissingError
from mpcore.capabilities.cases import DTYPES, FAMILIES, error, limit, make_case, right
from mpcore.capabilities.load import moment, used_by_others
from mpcore.capabilities.proofs import proved
from mpcore.errors import BackendError, BackendMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.backend.probe import Prepared, Probe

__all__ = ["main"]

_BUDGET = 0.6  # seconds that the rounds of one operation may take, all dtypes together
_ROUNDS = (3, 15)
_SHORTEST, _ENOUGH = 2e-4, 1e-3  # seconds; what takes less shows launching alone: made larger
_LARGEST = 16


def main(argv: list[str]) -> int:
    """Examine one framework; return 0, or 1 after sending the error."""
    task = json.loads(argv[0])
    return serve(partial(_work, task), partial(_failed, task))


def _work(task: dict[str, Any], emit: Callable[..., None]) -> None:
    os.chdir(task["folder"])  # frameworks leave folders behind (MindSpore: rank_0/)
    _examine(task["backend"], emit, quick=task["quick"])


def _failed(task: dict[str, Any], raised: BaseException, emit: Callable[..., None]) -> None:
    missing = isinstance(raised, BackendMissingError)
    exc = (raised.__cause__ if missing else None) or raised
    emit(error=_told(exc), status=_status(exc, task["backend"]))


def _module(name: str) -> str:
    points = {point.name: point for point in metadata.entry_points(group="mpcore.backends")}
    return points[name].module


def _status(exc: BaseException, backend: str) -> str:
    """Return whether the framework is missing, failed, or has no probe.

    It is missing if the module that is not found is what the backend's own code imports; a
    framework that misses a package of its own is broken.
    """
    if isinstance(exc, PartMissingError):
        return "no probe"
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    importer = str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""
    own = importer.partition(".")[0] == _module(backend).partition(".")[0]
    return "missing" if own and isinstance(exc, ModuleNotFoundError) else "failed"


def _told(exc: BaseException) -> str:
    text = " ".join(str(exc).replace("-" * 10, "").split())
    return text if isinstance(exc, BackendError) else f"{type(exc).__name__}: {text}"[:400]


def _examine(name: str, emit: Callable[..., None], *, quick: bool) -> None:
    backend = load_backend(name)
    probe = PROBE.of(backend)
    can = backend.capabilities()
    support = {dtype: [support.level, support.reason] for dtype, support in can.compute.items()}
    emit(about={**probe.about(), "support": support})
    count, load = len(probe.families), 0.0
    for index, family in enumerate(probe.families):
        emit(phase=family, step=index, of=count)
        able = {dtype: _check(probe, family, dtype, emit) for dtype in DTYPES}
        if not quick:
            before = moment()
            seconds = _times(probe, family, able)
            load = max(load, used_by_others(before, moment()))
            emit(seconds=seconds, family=family, load=load)
    for shown in proved(backend):
        emit(difference={"name": shown.name, "size": shown.size, "error": shown.error})


def _check(probe: Probe, family: str, dtype: str, emit: Callable[..., None]) -> bool | None:
    """Send whether an operation runs and is right.

    Returns:
        Whether its gradients run too; None if it is refused.
    """
    case = make_case(family, dtype)
    want = right(family, case)
    fact: dict[str, Any] = {"family": family, "dtype": dtype}
    able, errors = None, {}
    # Said before it is done: if it kills the process, the parent knows what it was.
    emit(trying=f"{family} in {dtype}")
    for grad, refusal in ((False, "refused"), (True, "forward_only")):
        try:
            prepared = probe.prepare(family, dtype, case, grad=grad)
            for result, tensor in prepared.run().items():
                values, returned = probe.read(tensor)
                if result in prepared.axes:
                    values = values.transpose(prepared.axes[result])
                errors[result] = error(values, want[result])
                fact.setdefault("returned", returned)
            able = grad
        except Exception as exc:  # what a framework raises for a kernel that it lacks has no type
            fact[refusal] = _told(exc)
            break
    if errors:
        worst = max(errors, key=lambda result: errors[result])
        ratio = errors[worst] / limit(family, dtype)
        fact |= {"worst": worst, "error": ratio if isfinite(ratio) else "inf"}
        # TF32 keeps as many bits as float16
        fact["reduced"] = ratio > 1 and errors[worst] <= limit(family, "float16")
    emit(fact=fact)
    return able


def _times(probe: Probe, family: str, able: Mapping[str, bool | None]) -> dict[str, list[float]]:
    """Return the seconds of each round by dtype; dtypes take turns within a round."""

    def ready(size: int) -> dict[str, Prepared]:
        runs = {
            dtype: probe.prepare(family, dtype, make_case(family, dtype, size), grad=grad)
            for dtype, grad in able.items()
            if grad is not None
        }
        for prepared in runs.values():
            prepared.run()  # compiles, allocates, wakes up
        return runs

    size = FAMILIES[family].size
    runs = ready(size)
    if not runs:
        return {}
    once = {dtype: _time(prepared) for dtype, prepared in runs.items()}
    shortest = min(once.values())
    if shortest < _SHORTEST:
        runs = ready(size * min(ceil(_ENOUGH / shortest), _LARGEST))
        once = {dtype: _time(prepared) for dtype, prepared in runs.items()}
    low, high = _ROUNDS
    rounds = min(max(int(_BUDGET / sum(once.values())), low), high)
    seconds: dict[str, list[float]] = {dtype: [] for dtype in runs}
    for number in range(rounds):
        # There and back: what drifts within a round meets every dtype.
        for dtype in list(runs) if number % 2 == 0 else reversed(list(runs)):
            seconds[dtype].append(_time(runs[dtype]))
    return seconds


def _time(prepared: Prepared) -> float:
    start = time.perf_counter()
    prepared.run()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
