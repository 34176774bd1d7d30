"""The charts of the report: which ones a result has numbers for, and what each shows."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from mpcore.tools.report.bars import bar_charts
from mpcore.tools.report.drawing import (
    Chart,
    curve_panel,
    last,
    lines,
    mark_steps,
    powers_of_two,
    readable,
    shade,
    shade_around,
)
from mpcore.tools.report.numbers import (
    format_loss,
    format_scale,
)
from mpcore.tools.report.svg import PALETTE, inline, series, style
from mpcore.tools.report.view import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mpcore.tools.report.result import Result, Run

__all__ = ["draw"]

_LOG_FROM = 100.0  # largest over smallest loss; beyond, a linear axis hides the small ones


def draw(result: Result) -> list[Chart]:
    """Return every chart that the result has numbers for, in the order of the page."""
    with style():
        drawn = (_losses, _differences, _across, _scales, bar_charts, _norms)
        return [chart for make in drawn for chart in make(result, series(result))]


# --- curves ---------------------------------------------------------------------------------


def _losses(result: Result, places: dict[str, int]) -> Iterator[Chart]:
    yield from _curves(result, places, ("loss", "Loss", "loss"), result.tolerances)


def _norms(result: Result, places: dict[str, int]) -> Iterator[Chart]:
    yield from _curves(result, places, ("norm", "Gradient norm", "grad_norm"), {})


def _differences(result: Result, places: dict[str, int]) -> Iterator[Chart]:
    """Yield one panel per policy: how far each backend is from the first, and the noise."""
    panels = [
        (policy, runs, _relative(runs), _finite(result.tolerances.get(policy, ())))
        for policy, runs in _by_policy(_with(result, "loss")).items()
    ]
    panels = [panel for panel in panels if any(not _empty(c) for c in panel[2].values())]
    values = [v for _, _, curves, noise in panels for c in (*curves.values(), noise) for v in c]
    limits = _log_limits([value for value in values if value > 0])
    steps = max((len(run.loss) for _, runs, _, _ in panels for run in runs), default=0)
    for index, (policy, runs, curves, noise) in enumerate(panels):
        first = runs[0].backend
        figure, axes = curve_panel(steps, "log", limits)
        shade(axes, limits[0], noise, places[first])
        lines(axes, curves, places, "default")
        text = f"Relative loss difference from {first} at each step under {policy}. "
        text += f"Largest: {_largest_of(curves)}."
        note = f"shaded: rounding noise of {first}" if noise else "relative"
        svg = inline(figure, f"mp-difference-{index}", text)
        title = f"Difference from {first}, {policy}"
        yield Chart(
            "difference", title, note, _simulated(runs), svg, _read(curves, "{:.1e}".format)
        )


def _across(result: Result, places: dict[str, int]) -> Iterator[Chart]:
    """Yield one panel per run that is compared across policies: how far those others are."""
    runs = {run.key: run for run in _with(result, "loss")}
    groups: dict[tuple[str, str], dict[str, Run]] = {}
    for pair in result.pairs:
        one, other = pair.keys
        if pair.across and one in runs and other in runs:
            name = other[1] if one[0] == other[0] else " ".join(other)
            groups.setdefault(one, {})[name] = runs[other]
    for index, (one, others) in enumerate(groups.items()):
        reference, name = _finite(runs[one].loss), " ".join(one)
        curves = {n: _apart(_finite(run.loss), reference) for n, run in others.items()}
        if all(_empty(curve) for curve in curves.values()):
            continue
        # the widest of all the policies in the panel, as for its verdicts
        policies = [one[1], *(run.policy for run in others.values())]
        tolerances = [_finite(result.tolerances.get(policy, ())) for policy in policies]
        noise = max(tolerances, key=_largest)
        values = [value for curve in (*curves.values(), noise) for value in curve if value > 0]
        figure, axes = curve_panel(len(reference), "log", _log_limits(values))
        shade(axes, _log_limits(values)[0], noise, places[one[0]])
        # colours of their own: they may all be of one backend
        lines(axes, curves, {n: p % len(PALETTE) for p, n in enumerate(curves, 1)}, "default")
        text = f"Relative loss difference from {name} at each step. Largest: {_largest_of(curves)}."
        svg = inline(figure, f"mp-across-{index}", text)
        note = "shaded: rounding noise of the lowest of these policies" if noise else "relative"
        simulated = _simulated([*others.values()])
        data = _read(curves, "{:.1e}".format)
        yield Chart("difference", f"Difference from {name}", note, simulated, svg, data)


def _relative(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the relative distance of every other curve from the first."""
    reference = _finite(runs[0].loss)
    return {run.backend: _apart(_finite(run.loss), reference) for run in runs[1:]}


def _apart(own: list[float], reference: list[float]) -> list[float]:
    """Return the relative distance of two curves; nan, which leaves a gap, where it is 0."""
    return [
        abs(a - b) / abs(b) if b and a != b else math.nan
        for a, b in zip(own, reference, strict=False)
    ]


def _largest_of(curves: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {_largest(curve):.1e}" for name, curve in curves.items())


def _curves(
    result: Result,
    places: dict[str, int],
    names: tuple[str, str, str],
    tolerances: dict[str, tuple[float, ...]],
) -> Iterator[Chart]:
    """Yield one panel per policy; all share both axes, so that policies can be compared."""
    group, title, key = names
    drawable = _with(result, key)
    limits, log = _limits([value for run in drawable for value in _finite(getattr(run, key))])
    steps = max((len(getattr(run, key)) for run in drawable), default=0)
    for index, (policy, runs) in enumerate(_by_policy(drawable).items()):
        curves = {run.backend: _finite(getattr(run, key)) for run in runs}
        first = runs[0].backend
        noise = list(tolerances.get(policy, ()))
        figure, axes = curve_panel(steps, "log" if log else "linear", limits)
        shade_around(axes, curves[first], noise, places[first])
        lines(axes, curves, places, "default")
        ends = ", ".join(f"{name} {format_loss(last(curve))}" for name, curve in curves.items())
        text = f"{title} of each step under {policy}. Last values: {ends}."
        note = f"shaded: rounding noise around {first}" if noise else ""
        svg = inline(figure, f"mp-{group}-{index}", text)
        data = _read(curves, format_loss)
        yield Chart(group, f"{title}, {policy}", note, _simulated(runs), svg, data)


def _scales(result: Result, places: dict[str, int]) -> Iterator[Chart]:
    scaled = [run for run in result.runs if any(s != 1 for s in _finite(run.scale))]
    steps = max((len(run.scale) for run in scaled), default=0)
    for index, (policy, runs) in enumerate(_by_policy(scaled).items()):
        curves = {run.backend: _log2(run.scale) for run in runs}
        limits, _ = _limits([v for curve in curves.values() for v in curve], least=2.0)
        figure, axes = curve_panel(steps, "linear", limits)
        powers_of_two(axes)
        lines(axes, curves, places, "steps-post")
        skips = [_skips(run, len(curves[run.backend])) for run in runs]
        for run, steps_of_run in zip(runs, skips, strict=True):
            mark_steps(axes, steps_of_run, curves[run.backend], places[run.backend])
        text = f"Loss scale of each step under {policy}. {_scale_words(runs)}"
        note = "cross: the step was skipped" if any(skips) else "no step was skipped"
        svg = inline(figure, f"mp-scale-{index}", text)
        scales = {run.backend: _finite(run.scale) for run in runs}
        flat = not any(skips) and all(len(set(curve)) < 2 for curve in scales.values())
        name, data = f"Loss scale, {policy}", _read(scales, format_scale)
        yield Chart("scale", name, note, _simulated(runs), svg, data, flat)


def _scale_words(runs: Iterable[Run]) -> str:
    words = []
    for run in runs:
        skipped = len(_skips(run))
        ends = [format_scale(run.scale[place]) for place in (0, -1)]
        words.append(f"{run.backend}: from {ends[0]} to {ends[1]}, {skipped} skipped steps.")
    return " ".join(words)


def _skips(run: Run, steps: int | None = None) -> list[int]:
    """Return which of the first ``steps`` steps moved nothing."""
    return [step for step, moved in enumerate(run.stepped[:steps]) if not moved]


def _read(curves: dict[str, list[float]], form: Callable[[float], str]) -> str:
    told = {
        name: [form(value) if math.isfinite(value) else "-" for value in curve]
        for name, curve in curves.items()
    }
    return readable(told)


# --- numbers --------------------------------------------------------------------------------


def _by_policy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    return grouped(runs, attrgetter("policy"))


def _with(result: Result, key: str) -> list[Run]:
    return [run for run in result.runs if not _empty(_finite(getattr(run, key)))]


def _finite(values: Iterable[float]) -> list[float]:
    """Return the numbers with everything non-finite as nan, which leaves a gap in a curve."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _log2(values: Iterable[float]) -> list[float]:
    return [math.log2(value) if value > 0 else math.nan for value in _finite(values)]


def _empty(curve: list[float]) -> bool:
    return all(math.isnan(value) for value in curve)


def _largest(curve: list[float]) -> float:
    return max((value for value in curve if math.isfinite(value)), default=0.0)


def _log_limits(values: list[float]) -> tuple[float, float]:
    return (min(values) / 1.5, max(values) * 1.5) if values else (0.1, 1.0)


def _limits(values: list[float], least: float = 0.0) -> tuple[tuple[float, float], bool]:
    """Return axis limits around ``values``, and whether the axis should be logarithmic."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if low > 0 and high / low > _LOG_FROM and not least:
        return _log_limits([low, high]), True
    half = max((high - low) * 0.54, least, abs(high) * 1e-3, 1e-12)
    middle = low + (high - low) / 2
    return (middle - half, middle + half), False


def _simulated(runs: Iterable[Run]) -> tuple[str, ...]:
    return tuple(run.backend for run in runs if run.simulated)
