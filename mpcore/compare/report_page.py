"""The page of the report: ``templates/report.html.j2`` and what it is filled with."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mpcore.compare.charts import draw
from mpcore.compare.report_numbers import raised
from mpcore.compare.report_svg import PALETTE, series
from mpcore.compare.report_view import pair_views, run_views
from mpcore.compare.report_words import findings, headline

__all__ = ["page"]

_GALLERIES = (
    ("Loss", ("loss",)),
    ("Where they part", ("difference",)),
    ("Loss scale, speed and memory", ("scale", "speed", "memory")),
    ("Gradient norm", ("norm",)),
)


def page(result: dict[str, Any]) -> str:
    """Return the page of a result, complete in itself; ``records`` are not needed."""
    environment = Environment(
        loader=PackageLoader("mpcore.compare"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = draw(result)
    runs, pairs = run_views(result), pair_views(result)
    return environment.get_template("report.html.j2").render(
        result=result,
        settings=result.get("settings") or {},
        runs=runs,
        pairs=pairs,
        headline=headline(runs, pairs, interrupted=bool(result.get("interrupted"))),
        findings=findings(runs, pairs),
        galleries=[
            (title, [chart for chart in drawn if chart.group in groups])
            for title, groups in _GALLERIES
        ],
        svg=lambda chart: Markup(chart.svg),  # escaped where it was drawn
        places=series(result),
        palette=PALETTE,
        raised=raised,
        maps=_maps(result),
        skipped=_skipped(result),
        versions=_versions(result),
    )


def _maps(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return, per backend, the layers and what each does under each policy."""
    planned = [run for run in result["runs"] if (run.get("plan") or {}).get("layers")]
    maps = []
    for backend in dict.fromkeys(run["backend"] for run in planned):
        plans = {run["policy"]: run["plan"] for run in planned if run["backend"] == backend}
        tables = {p: {e["path"]: e for e in plan["layers"]} for p, plan in plans.items()}
        layers = {path: entry for entries in tables.values() for path, entry in entries.items()}
        rows = [
            (e, [entries.get(path) for entries in tables.values()]) for path, e in layers.items()
        ]
        unused = [(p, rule) for p, plan in plans.items() for rule in plan.get("unused_rules") or []]
        maps.append({"backend": backend, "policies": list(plans), "rows": rows, "unused": unused})
    return maps


def _skipped(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (backend, policy, steps, reason); steps in a row with one reason are one entry."""
    found: list[tuple[str, str, str, str]] = []
    for run in result["runs"]:
        ranges: list[list[Any]] = []
        for skip in run.get("skipped") or []:
            if ranges and ranges[-1][1:] == [skip["step"] - 1, skip["reason"]]:
                ranges[-1][1] = skip["step"]
            else:
                ranges.append([skip["step"], skip["step"], skip["reason"]])
        for first, last, reason in ranges:
            steps = f"{first}" if first == last else f"{first} to {last}"
            found.append((run["backend"], run["policy"], steps, reason or "no reason recorded"))
    return found


def _versions(result: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return, per package, its version in each backend's process."""
    found: dict[str, dict[str, str]] = {}
    for run in result["runs"]:
        for package, version in (run.get("versions") or {}).items():
            found.setdefault(package, {})[run["backend"]] = version
    return found
