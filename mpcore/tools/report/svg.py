"""Colours of the charts, and the way of a figure into the page: inline SVG, light or dark.

Matplotlib draws with placeholder colours; ``inline`` turns them into CSS variables (with a
fallback, so that a chart also looks right alone), drops everything that names another site, and
gives every id a prefix, so that many charts share one page.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from mpcore.tools.report.result import Result

__all__ = ["HEAT", "INK", "PALETTE", "inline", "placeholder", "series", "style"]

PALETTE = (
    # (on a light page, on a dark page): hues of Okabe and Ito 2008, told apart by readers with
    # any colour vision, moved in lightness until text in them has a contrast of 4.5 : 1
    ("#0068a8", "#62b6ea"),
    ("#bb4a00", "#f39a5b"),
    ("#00795a", "#3cc79b"),
    ("#98417c", "#e39cc8"),
    ("#5c5c5c", "#b9b9b9"),
    ("#7d5e00", "#dcb93c"),
    ("#007284", "#5fd0e2"),
    ("#b0003a", "#ff8ba0"),
    # the first four again, told apart by their lightness and by the dashes of their curves
    ("#00375c", "#b3dcf7"),
    ("#6e2b00", "#fbd3b6"),
    ("#00402f", "#a3ecd5"),
    ("#56204a", "#f3d3e8"),
)
"""Colour of each backend's lines, bars and name; ``series`` says which backend has which."""

HEAT = (
    # (light page: back, ink; dark page: back, ink): one hue by lightness, for any colour vision
    ("#f1f3f6", "#3c444d", "#23282e", "#b9c0c9"),
    ("#dfe9f3", "#1b1f24", "#20313f", "#e6e9ed"),
    ("#bdd5ea", "#1b1f24", "#1c4363", "#e6e9ed"),
    ("#93bcdd", "#1b1f24", "#1d5783", "#f4f7fa"),
    ("#669fca", "#0b0e11", "#2a70a6", "#ffffff"),
    ("#2a70a6", "#ffffff", "#62a5d6", "#0b0e11"),
    ("#174f83", "#ffffff", "#9bcbee", "#0b0e11"),
    ("#0b2c55", "#ffffff", "#dcefff", "#0b0e11"),
)
"""Colours of the cells of a heat map, from no difference to the largest."""

INK = "#010101"
"""Placeholder of the colour of the page's text."""

_GRID = "#020202"
_KNOWN = ("torch", "tensorflow", "mindspore", "numpy")
_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "svg.fonttype": "none",
    "svg.hashsalt": "mpcore",
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": _GRID,
    "grid.color": _GRID,
    "axes.unicode_minus": False,
}


def series(result: Result) -> dict[str, int]:
    """Return the place of every backend in ``PALETTE``; known backends always have the same.

    A configuration such as ``"torch:compiled"`` has its framework's place if that is free.
    """
    names = dict.fromkeys(run.backend for run in result.runs)
    places = {name: _KNOWN.index(name) for name in names if name in _KNOWN}
    for name in names:
        base = re.split("[:@]", name)[0]
        if base in _KNOWN and _KNOWN.index(base) not in places.values():
            places[name] = _KNOWN.index(base)
    taken = set(places.values())
    free = [place for place in range(len(PALETTE)) if place not in taken] or [len(PALETTE) - 1]
    others = [name for name in names if name not in places]
    places |= {name: free[min(i, len(free) - 1)] for i, name in enumerate(others)}
    return {name: places[name] for name in names}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style inside the block; the user's own settings come back after it."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib lacks: the browser has it
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def placeholder(place: int) -> str:
    """Return the colour to draw with for a place in ``PALETTE``."""
    return f"#030{place // 10}0{place % 10}"


def inline(figure: Figure, key: str, text: str) -> str:
    """Return the figure as SVG for a page: no fixed size, no foreign names, its own ids.

    Args:
        figure: drawn with the placeholder colours.
        key: prefix of every id, unique in the page.
        text: what the chart says, for readers who do not see it.
    """
    stream = io.StringIO()
    FigureCanvasSVG(figure).print_svg(stream)
    body = stream.getvalue()
    body = body[body.index("<svg") : body.rindex("</svg>")]
    size = " ".join(f"{inches * 72:g}" for inches in figure.get_size_inches())
    head = (
        f'<svg viewBox="0 0 {size}" role="img" aria-labelledby="{key}-title">'
        f'<title id="{key}-title">{html.escape(text)}</title>'
    )
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<style .*?</style>", "", body, count=1, flags=re.DOTALL)  # rules for all "*"
    body = re.sub(r'\s(id|xlink:href)="(#?)', rf' \1="\2{key}-', body)
    body = body.replace("url(#", f"url(#{key}-").replace("xlink:href=", "href=")
    body = body.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    body = re.sub(r"(fill|stroke): (#0[0-9]0[0-9]0[0-9])\b", _variable, body)
    return re.sub(r"<svg [^>]*>", lambda _: head, body, count=1) + "</svg>"


def _variable(found: re.Match[str]) -> str:
    what, colour = found.groups()
    if colour == INK:
        return f"{what}: currentColor"
    if colour == _GRID:
        return f"{what}: var(--grid, #d5d9de)"
    place = int(colour[4]) * 10 + int(colour[-1])
    return f"{what}: var(--c{place}, {PALETTE[place][0]})"
