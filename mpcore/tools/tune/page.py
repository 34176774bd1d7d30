"""The page of a search: the picture of time against error, and what stands behind the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mpcore.tools.report.svg import INK, PALETTE, inline, placeholder, style
from mpcore.tools.tune.screen import LIMIT
from mpcore.tools.tune.words import lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.tools.tune.evidence import Evidence, Point

__all__ = ["page"]

_SIZE = 9.0, 4.6  # inches
_LEAST = 1e-4  # of rho: float32, and what is as good, lies there
_COLOURS = {"proven": 2, "measured": 0, "screened": 0, "predicted": 4}


def page(name: str, found: Mapping[str, Evidence]) -> str:
    """Return the page of an experiment's searches, by framework; complete in itself."""
    environment = Environment(
        loader=PackageLoader("mpcore.tools.tune", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    searches = [
        _view(backend, one, number) for number, (backend, one) in enumerate(found.items())
        if one.policy
    ]  # fmt: skip
    return environment.get_template("page.html.j2").render(
        name=name, searches=searches, palette=PALETTE
    )


def _view(backend: str, found: Evidence, number: int) -> dict[str, Any]:
    points = found.points()
    return {
        "backend": backend,
        "policy": found.policy,
        "level": found.level,
        "lines": [
            line.split(maxsplit=2 if line.startswith("holds for") else 1) for line in lines(found)
        ],
        "points": list(enumerate(points, start=1)),
        "chart": Markup(_chart(points, found.policy, f"mp-tune-{number}")),
        "duels": found.of("duel"),
        "moves": [*found.of("outer"), *found.of("untried")],
        "refused": {
            **found.last("named").get("refused", {}),
            **{e["policy"]: e["why"] for e in found.of("refused")},
        },
    }


def _chart(points: list[Point], answer: str, key: str) -> str:
    """Return the picture as SVG: time over float32's, error over the noise of batches."""
    with style():
        figure = Figure(figsize=_SIZE)
        figure.patch.set_visible(False)  # the page's own ground, light or dark
        axes = figure.add_axes((0.11, 0.14, 0.86, 0.83), facecolor="none")
        shown = [(n, p) for n, p in enumerate(points, start=1) if p.time is not None]
        for number, point in shown:
            _draw(axes, number, point, is_answer=point.policy == answer)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        errors = [p.rho for _, p in shown if p.rho]
        axes.set_ylim(_LEAST / 2, max([2 * LIMIT, *(3 * e for e in errors)]))
        axes.axhline(LIMIT, color=placeholder(7), linewidth=1)
        axes.text(
            0.995, LIMIT * 1.15, "the limit of one step", color=placeholder(7), fontsize=10,
            ha="right", transform=axes.get_yaxis_transform(),
        )  # fmt: skip
        ends = [end for _, p in shown for end in (p.time, p.low, p.high)]
        times = [end for end in ends if end is not None] or [1.0]
        axes.set_xlim(min(0.9, *times) - 0.06, max(1.1, *times) + 0.06)
        axes.set_xlabel("time of a step, over float32's")
        axes.set_ylabel("error of a gradient, over the noise of batches")
        axes.grid(visible=True, color="#020202", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        told = "; ".join(f"{p.policy}: {p.time:.2f}, {p.level}" for _, p in shown)
        return inline(figure, key, f"Time against error. {told}.")


def _draw(axes: Any, number: int, point: Point, *, is_answer: bool) -> None:
    colour = placeholder(_COLOURS[point.level])
    height = max(point.rho or _LEAST, _LEAST)
    if point.low is not None and point.high is not None:
        axes.plot([point.low, point.high], [height, height], color=colour, linewidth=1.5)
    filled = point.level == "proven"
    axes.plot(
        [point.time], [height],
        marker="D" if is_answer else "o", markersize=11 if is_answer else 8, color=colour,
        markerfacecolor=colour if filled else "none", markeredgewidth=1.6,
        alpha=0.75 if point.level == "predicted" else 1.0,
    )  # fmt: skip
    axes.annotate(
        str(number), (point.time, height), xytext=(7, 6), textcoords="offset points", color=INK,
        fontsize=11,
    )  # fmt: skip
