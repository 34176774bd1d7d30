"""The page of the report: ``templates/report.html.j2`` and what it is filled with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from mpcore.tools.report.answers import answers
from mpcore.tools.report.cells import LIMITS, MEASURES, QUANTITIES
from mpcore.tools.report.charts import draw
from mpcore.tools.report.depth import cards, depth_views
from mpcore.tools.report.dtypes import dtype_maps
from mpcore.tools.report.numbers import raised, short_power
from mpcore.tools.report.overflow import overflow_views
from mpcore.tools.report.svg import HEAT, PALETTE, series
from mpcore.tools.report.templating import templates
from mpcore.tools.report.view import matrices, pair_views, run_views
from mpcore.tools.report.words import decided, findings, headline, rough

if TYPE_CHECKING:
    from mpcore.tools.report.result import Result

__all__ = ["page"]

_GALLERIES = (
    ("Loss", ("loss",), "Of each step, before it moves the weights. Every run is free here."),
    (
        "How far apart, step by step",
        ("difference",),
        "Difference of two losses, relative to the reference's. What lies in the shade may be "
        "rounding alone.",
    ),
    (
        "Loss scale, speed and memory",
        ("scale", "speed", "bytes", "memory"),
        "The loss scale is the factor on the loss before backward, which keeps small gradients in "
        "the range of a 16-bit format. A step whose gradients are not finite is skipped.",
    ),
    (
        "Gradient norm",
        ("norm",),
        "Length of all gradients of a step together; a gap is a step where it is not finite.",
    ),
)
_OPEN = 4  # heat maps that are shown at once; the others unfold


def page(result: Result) -> str:
    """Return the page of a result, complete in itself; ``records`` are not needed."""
    drawn = draw(result)
    runs, pairs, depths = run_views(result), pair_views(result), depth_views(result)
    causes, overflows = cards(depths), overflow_views(result)
    return (
        templates()
        .get_template("report.html.j2")
        .render(
            result=result,
            settings=_settings(result),
            runs=runs,
            pairs=pairs,
            headline=headline(runs, pairs, interrupted=result.interrupted),
            decided=decided(pairs),
            findings=findings(runs, pairs, answers(result, causes, overflows)),
            matrices=matrices(pairs),
            depths=sorted(depths, key=lambda depth: not depth.root_causes),
            cards=causes,
            agreeing=[depth for depth in depths if not depth.root_causes],
            depth_of={int(depth.key.rpartition("-")[2]): depth for depth in depths},
            opened=[depth.key for depth in depths if depth.root_causes or len(depths) <= 2][:_OPEN],
            noun="framework" if all(name.isalnum() for name in series(result)) else "set-up",
            overflows=overflows,
            quantities=QUANTITIES,
            measures=MEASURES,
            limits=[short_power(limit) for limit in LIMITS],
            heat=HEAT,
            galleries=[
                (title, [chart for chart in drawn if chart.group in groups], note)
                for title, groups, note in _GALLERIES
            ],
            svg=lambda chart: Markup(chart.svg),  # escaped where it was drawn
            places=series(result),
            palette=PALETTE,
            raised=raised,
            rough=rough(runs),
            maps=dtype_maps(result),
            skipped=_skipped(result),
            versions=_versions(result),
            configurations={
                run.backend: vars(run.configuration) for run in result.runs if run.configuration
            },
        )
    )


def _skipped(result: Result) -> list[tuple[str, str, str, str]]:
    """Return (backend, policy, steps, reason); steps in a row with one reason are one entry."""
    found: list[tuple[str, str, str, str]] = []
    for run in result.runs:
        ranges: list[tuple[int, int, str]] = []
        for skip in run.skipped:
            reason = skip.reason or "no reason recorded"
            if ranges and ranges[-1][1:] == (skip.step - 1, reason):
                ranges[-1] = (ranges[-1][0], skip.step, reason)
            else:
                ranges.append((skip.step, skip.step, reason))
        for first, last, reason in ranges:
            steps = f"{first}" if first == last else f"{first} to {last}"
            found.append((*run.key, steps, reason))
    return found


def _settings(result: Result) -> dict[str, object]:
    """Return what is known of the settings, by name."""
    found = vars(result.settings) if result.settings else {}
    return {name: value for name, value in found.items() if value not in (None, "")}


def _versions(result: Result) -> dict[str, dict[str, str]]:
    """Return, per package, its version in each backend's process."""
    found: dict[str, dict[str, str]] = {}
    for run in result.runs:
        for package, version in run.versions.items():
            found.setdefault(package, {})[run.backend] = version
    return found
