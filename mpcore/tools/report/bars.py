"""The bars of the report: time of a step, peak memory, and bytes of each parameter."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from mpcore.tools.report.drawing import Bar, Chart, bar_panel
from mpcore.tools.report.numbers import format_megabytes, format_milliseconds, number
from mpcore.tools.report.svg import inline
from mpcore.tools.report.view import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.tools.report.result import Result, Run

__all__ = ["bar_charts"]


def bar_charts(result: Result, places: dict[str, int]) -> Iterator[Chart]:
    """Yield one panel for each of the three that the result has numbers for.

    Args:
        result: the comparison.
        places: of the backends in the palette.
    """
    note = "median step, whisker up to the 90th percentile; shorter is faster"
    yield from _panel(result, places, ("speed", "Time of a step", note), _time)
    yield from _panel(result, places, ("memory", "Peak memory", "1 MB is 1 000 000 bytes"), _peak)
    note = "parameters, gradients, masters and optimizer between steps; stroke: predicted"
    yield from _panel(result, places, ("bytes", "Bytes per parameter", note), _per_parameter)


def _panel(
    result: Result,
    places: dict[str, int],
    words: tuple[str, str, str],
    measure: Callable[[Run, int], Bar],
) -> Iterator[Chart]:
    """Yield one panel of horizontal bars, a group per policy; nothing without a number."""
    group, title, note = words
    groups = {
        policy: [measure(run, places[run.backend]) for run in runs]
        for policy, runs in grouped(result.runs, attrgetter("policy")).items()
    }
    every = [bar for bars in groups.values() for bar in bars]
    sizes = [size for bar in every for size in (bar.value, bar.high, bar.mark)]
    longest = max(filter(math.isfinite, sizes), default=0.0)
    if longest <= 0:
        return
    told = [f"{bar.name} {policy}: {bar.text}." for policy, bars in groups.items() for bar in bars]
    svg = inline(bar_panel(groups, longest), f"mp-{group}", f"{title}. {' '.join(told)}")
    yield Chart(group, title, note, (), svg)


def _time(run: Run, place: int) -> Bar:
    seconds = run.step_seconds
    median, high = (
        number(seconds.median if seconds else None),
        number(seconds.p90 if seconds else None),
    )
    return _bar(run, place, (median, high), f"{format_milliseconds(median)} ms")


def _peak(run: Run, place: int) -> Bar:
    size = number(run.peak_memory_bytes)
    return _bar(run, place, (size, math.nan), f"{format_megabytes(size)} MB")


def _bar(run: Run, place: int, ends: tuple[float, float], text: str) -> Bar:
    if not math.isfinite(ends[0]):
        text = run.status or "no number"
    elif run.simulated:
        text += " simulated"
    return Bar(run.backend, place, *ends, text, run.simulated)


def _per_parameter(run: Run, place: int) -> Bar:
    measured = number(run.memory.measured_bytes_per_param if run.memory else None)
    predicted = number(run.memory.predicted_bytes_per_param if run.memory else None)
    known = [f"{measured:.3g} B"] if math.isfinite(measured) else []
    known += [f"plan {predicted:.3g}"] if math.isfinite(predicted) else []
    text = ", ".join(known) or (run.status if run.status != "ok" else "not measured")
    return Bar(run.backend, place, measured, math.nan, text, run.simulated, predicted)
