"""Timing for profiles: kernels in turn, and events of several threads that share the clock."""

from __future__ import annotations

import heapq
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mpcore.backend.profiler import KernelTime, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Event", "compared", "cores", "in_turn", "own_times", "sample", "time_kernels_by"]

_ROUNDS = 9
_LONG = 3e-4  # seconds of one sample: the clock and a visitor on the core weigh little then
_MOST = 0.4  # seconds for one kernel

_clock: Callable[[], float] = time.perf_counter


def time_kernels_by(clock: Callable[[], float]) -> None:
    """Let this process time kernels by another clock than the wall's."""
    global _clock
    _clock = clock


def in_turn(
    kernel: KernelTime,
    run: Callable[[], Any],
    rival: Callable[[], Any],
    wait: Callable[[Any], None] = lambda _: None,
) -> KernelTime:
    """Return ``kernel`` with times: ``run`` and ``rival`` in turn, so that noise falls on both.

    Args:
        kernel: its name and dtypes.
        run: one call in its own dtype.
        rival: one call in the other dtype.
        wait: called with the last result of a sample, to wait for a device.
    """
    once = max(sample(run, 1, wait), sample(rival, 1, wait), 1e-9)  # a clock may stand still
    repeats = max(1, int(_LONG / once))
    rounds = max(3, min(_ROUNDS, int(_MOST / (2 * once * repeats))))
    now, then = [], []
    for _ in range(rounds):
        now.append(sample(run, repeats, wait))
        then.append(sample(rival, repeats, wait))
    saves = [a - b for a, b in zip(now, then, strict=True)]
    spreads = (Spread.of(now), Spread.of(then), Spread.of(saves))
    return KernelTime(kernel.name, kernel.dtype, kernel.other, *spreads)


def compared(
    name: str,
    dtypes: tuple[str, str],
    run: Callable[[], Any],
    rival: Callable[[], Any],
    refusals: tuple[type[Exception], ...],
    wait: Callable[[Any], None],
) -> KernelTime:
    """Return the times of a kernel in its own dtype and in another; or why that is refused.

    Args:
        name: of the kernel.
        dtypes: its own, and the other one.
        run: one call in its own dtype.
        rival: one call in the other dtype.
        refusals: what a framework raises that has no such kernel.
        wait: as for ``in_turn``.
    """
    kernel = KernelTime(name, *dtypes, Spread(0.0, 0.0, 0.0))
    try:
        rival()
    except refusals as exc:
        now = in_turn(kernel, run, run, wait).now
        return replace(kernel, now=now, refused=" ".join(str(exc).split())[:160])
    return in_turn(kernel, run, rival, wait)


def sample(
    run: Callable[[], Any], repeats: int, wait: Callable[[Any], None] = lambda _: None
) -> float:
    """Return the seconds of one call, of so many in a row."""
    start = _clock()
    for _ in range(repeats):
        result = run()
    wait(result)
    return (_clock() - start) / repeats


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Event(NamedTuple):
    """Something that ran from ``start`` to ``end`` (any unit of time) in one thread."""

    start: float
    end: float
    thread: int = 0


def own_times(events: Sequence[Event]) -> list[float]:
    """Return for each event the time that is its own; the sum is no more than the clock's.

    Of nested events of one thread the innermost owns the time. While several threads run,
    each owns an equal part of it.

    Examples:
        >>> own_times([Event(0, 10), Event(2, 5), Event(8, 10, thread=1)])
        [6.0, 3.0, 1.0]
    """
    own = [0.0] * len(events)
    running: dict[int, list[int]] = {}
    before = 0.0
    for moment, starts, index in _changes(events):
        tops = [stack[-1] for stack in running.values() if stack]
        for top in tops:
            own[top] += (moment - before) / len(tops)
        before = moment
        stack = running.setdefault(events[index].thread, [])
        if starts:
            stack.append(index)
        else:
            stack.remove(index)
    return own


def _changes(events: Sequence[Event]) -> Iterator[tuple[float, bool, int]]:
    """Yield (moment, whether one starts, which) in order; ends come before starts."""
    starts = sorted((e.start, -e.end, i) for i, e in enumerate(events))
    ends: list[tuple[float, int]] = []
    for start, _, index in starts:
        while ends and ends[0][0] <= start:
            end, done = heapq.heappop(ends)
            yield end, False, done
        yield start, True, index
        heapq.heappush(ends, (events[index].end, index))
    while ends:
        end, done = heapq.heappop(ends)
        yield end, False, done
