"""The parts that charts are made of: panels with their axes, curves and bars.

One chart is one panel of the width of a phone: the page arranges them.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from mpcore.tools.report.numbers import raised
from mpcore.tools.report.svg import INK, PALETTE, placeholder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Bar",
    "Chart",
    "bar_panel",
    "curve_panel",
    "last",
    "lines",
    "mark_steps",
    "powers_of_two",
    "readable",
    "shade",
    "shade_around",
    "spread",
]

# Solid and wide below, dashed and narrow above: curves that coincide all stay visible.
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2.2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)), "-")
_WIDTHS = (2.8, 2.0, 1.8, 1.4, 1.0)
_WIDTH, _HEIGHT = 360.0, 232.0  # points, equal to CSS pixels at the size of a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 84.0, 10.0, 38.0
_ROW, _HEADING = 20.0, 24.0
_TICKS = (1, 2, 5, 10)
_LONGEST = 14  # letters of a name beside its curve
_BRIEF = {"tensorflow": "tf", "mindspore": "ms"}


@dataclass(frozen=True)
class Chart:
    """One panel.

    Attributes:
        group: ``"loss"``, ``"difference"``, ``"scale"``, ``"speed"``, ``"memory"``, ``"norm"``,
            ``"bytes"``.
        title: what it shows, for its heading.
        note: one line on how to read it; may be empty.
        simulated: backends in it whose numbers come from simulated arithmetic.
        svg: the drawing, safe to put into a page as it is.
        data: of curves, what the pointer reads off, as JSON; ``""`` for none.
        flat: whether nothing moves in it.
    """

    group: str
    title: str
    note: str
    simulated: tuple[str, ...]
    svg: str
    data: str = ""
    flat: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        name: of the backend, at its left.
        place: of its colour in the palette.
        value: its length; nan for none.
        high: where its whisker ends; nan for none.
        text: at its right.
        faint: whether it is drawn pale.
        mark: where a stroke crosses it, such as what was predicted; nan for none.
    """

    name: str
    place: int
    value: float
    high: float
    text: str
    faint: bool
    mark: float = math.nan


def curve_panel(steps: int, scale: str, limits: tuple[float, float]) -> tuple[Figure, Any]:
    """Return a panel for curves of ``steps`` steps; ``scale``: ``"linear"`` or ``"log"``."""
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM)
    figure, axes = _figure(
        _HEIGHT, (box[0] / _WIDTH, box[1] / _HEIGHT, box[2] / _WIDTH, box[3] / _HEIGHT)
    )
    axes.set_yscale(scale)
    axes.set_xlim(0, max(steps - 1, 1))
    axes.set_ylim(*limits)
    axes.grid(visible=True, axis="y", linewidth=0.8)
    axes.tick_params(length=0, pad=5)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_TICKS))
    axes.set_xlabel("step", labelpad=3)
    if scale == "linear":
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_TICKS))
    else:
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    return figure, axes


def readable(curves: Mapping[str, Sequence[str]]) -> str:
    """Return what the pointer reads off a curve panel: each step's value by curve, as JSON."""
    box = {"left": _LEFT / _WIDTH, "right": 1 - _RIGHT / _WIDTH}
    return json.dumps({**box, "curves": {name: list(texts) for name, texts in curves.items()}})


def _figure(height: float, box: tuple[float, float, float, float]) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    return figure, figure.add_axes(box, facecolor="none")


def powers_of_two(axes: Any) -> None:
    """Let the upright axis of a panel, which counts exponents, show powers of two."""
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_TICKS))
    axes.tick_params(axis="y", labelsize=15, pad=9)  # powers are small print
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: raised(f"2^{y:.0f}")))


def lines(axes: Any, curves: dict[str, list[float]], places: dict[str, int], style: str) -> None:
    """Draw the curves and write each backend's name where its curve ends."""
    ends = {}
    for backend, curve in curves.items():
        place = places[backend]
        axes.plot(
            curve,
            color=placeholder(place),
            linestyle=_DASHES[place % len(_DASHES)],
            linewidth=_WIDTHS[place % len(_WIDTHS)],
            drawstyle=style,
            zorder=3 + place / len(PALETTE),
            dash_capstyle="butt",
            clip_on=style == "default",
        )
        end = axes.transAxes.inverted().transform(axes.transData.transform((0, last(curve))))[1]
        ends[backend] = min(max(float(end), 0.0), 1.0)
    gap = min(16.0 / (_HEIGHT - _TOP - _BOTTOM), 1.0 / max(len(ends) - 1, 1))
    for backend, height in spread(ends, gap).items():
        axes.text(
            1.03,
            height,
            _shown(backend),
            fontsize=_fit(backend),
            transform=axes.transAxes,
            color=placeholder(places[backend]),
            verticalalignment="center_baseline",
        )


def shade(axes: Any, low: Any, high: Sequence[float], place: int, where: Any = None) -> None:
    """Shade from ``low`` to ``high`` at every step; ``where``: at which steps, all if ``None``."""
    look = {"color": placeholder(place), "alpha": 0.22, "linewidth": 0, "zorder": 2}
    axes.fill_between(range(len(high)), low, high, where=where, **look)


def shade_around(axes: Any, curve: list[float], noise: list[float], place: int) -> None:
    """Shade a curve's neighbourhood; ``noise``: its half width at every step, relative."""
    pairs = list(zip(curve, noise, strict=False))
    low = [value - abs(value) * width for value, width in pairs]
    high = [value + abs(value) * width for value, width in pairs]
    shade(axes, low, high, place, [math.isfinite(v) and math.isfinite(w) for v, w in pairs])


def mark_steps(axes: Any, steps: list[int], curve: list[float], place: int) -> None:
    """Put a cross on the curve at each of ``steps``."""
    axes.plot(
        steps,
        [curve[step] for step in steps],
        linestyle="",
        marker="x",
        markersize=9,
        markeredgewidth=2,
        color=placeholder(place),
        clip_on=False,
        zorder=9,
    )


def spread(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Return heights at least ``gap`` apart, in the same order, near where they were."""
    placed: list[tuple[str, float]] = []
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        floor = placed[-1][1] + gap if placed else 0.0
        placed.append((name, max(height, floor)))
    above = max(placed[-1][1] - 1.0, 0.0) if placed else 0.0
    ceiling = 1.0
    for index in range(len(placed) - 1, -1, -1) if above else ():
        name, height = placed[index]
        placed[index] = (name, min(height, ceiling))
        ceiling = placed[index][1] - gap
    return dict(placed)


def last(curve: list[float]) -> float:
    """Return the last number of a curve that is one; nan if none is."""
    return next((value for value in reversed(curve) if not math.isnan(value)), math.nan)


def bar_panel(groups: Mapping[str, Sequence[Bar]], longest: float) -> Figure:
    """Return a panel of horizontal bars under the heading of their group.

    Args:
        groups: the bars by heading.
        longest: where the longest bar or whisker ends; above 0.
    """
    height = len(groups) * _HEADING + sum(map(len, groups.values())) * _ROW + 4
    figure, axes = _figure(height, (_RIGHT / _WIDTH, 0, 1 - _RIGHT / _WIDTH, 1))
    axes.set(xlim=(0, longest / 0.56), ylim=(height, 0))  # the rest is for the numbers
    axes.set_axis_off()
    top = 0.0
    for heading, bars in groups.items():
        _heading(axes, heading, top + _HEADING - 10)
        top += _HEADING
        for bar in bars:
            _bar(axes, bar, top + _ROW / 2)
            top += _ROW
    return figure


def _heading(axes: Any, text: str, middle: float) -> None:
    axes.text(
        -_RIGHT / (_WIDTH - _RIGHT),
        middle,
        _short(text, 46),
        transform=axes.get_yaxis_transform(),
        fontweight="bold",
        verticalalignment="center_baseline",
    )


def _bar(axes: Any, bar: Bar, middle: float) -> None:
    colour, known = placeholder(bar.place), math.isfinite(bar.value)
    where = {"transform": axes.get_yaxis_transform(), "verticalalignment": "center_baseline"}
    name = {"ha": "right", "color": colour, "fontsize": _fit(bar.name)}
    axes.text(-0.03, middle, _shown(bar.name), **name, **where)
    if known:
        look = {"color": colour, "alpha": 0.3} if bar.faint else {"color": colour}
        axes.barh(middle, bar.value, height=12, linewidth=0, **look)
    if math.isfinite(bar.high):
        ends = [bar.value, bar.high]
        axes.plot(ends, [middle] * 2, color=INK, linewidth=1.4, solid_capstyle="butt")
        axes.plot([bar.high] * 2, [middle - 3.5, middle + 3.5], color=INK, linewidth=1.4)
    if math.isfinite(bar.mark):
        axes.plot([bar.mark] * 2, [middle - 8, middle + 8], color=INK, linewidth=2)
    end = max(v for v in (bar.value, bar.high, bar.mark, 0.0) if math.isfinite(v))
    start = end / axes.get_xlim()[1] + 0.02
    axes.text(start, middle, bar.text, fontstyle="normal" if known else "italic", **where)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


def _shown(name: str) -> str:
    """Return the name of a configuration in the room that a chart has for it.

    Examples:
        >>> _shown("tensorflow"), _shown("tensorflow:compiled"), _shown("torch@/opt/new/bin/python")
        ('tensorflow', 'tf:compiled', 'torch@\N{HORIZONTAL ELLIPSIS}/python')
    """
    base, mark, rest = [*re.split("([:@])", name, maxsplit=1), "", ""][:3]
    text = f"{_BRIEF.get(base, base) if mark else base}{mark}{rest}"
    if len(text) <= _LONGEST:
        return text
    return f"{text[:6]}\N{HORIZONTAL ELLIPSIS}{text[7 - _LONGEST :]}"


def _fit(name: str) -> float:
    """Return the size of type in which ``_shown`` fits."""
    return 12.0 if len(_shown(name)) <= 12 else 10.5
