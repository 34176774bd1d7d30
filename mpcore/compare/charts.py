"""The charts of the report: inline SVG that follows the page's colours, light or dark.

Matplotlib draws with placeholder colours; ``_inline`` turns them into CSS variables (with a
fallback, so that a chart also looks right alone), drops everything that names another site, and
gives every id a prefix, so that many charts share one page. One chart is one panel of the width
of a phone: the page arranges them.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "PALETTE",
    "Chart",
    "draw",
    "format_loss",
    "format_milliseconds",
    "format_scale",
    "number",
    "raised",
    "series",
]

PALETTE = (
    # (on a light page, on a dark page): hues of Okabe and Ito 2008, told apart by readers with
    # any colour vision, moved in lightness until text in them has a contrast of 4.5 : 1
    ("#0068a8", "#62b6ea"),
    ("#bb4a00", "#f39a5b"),
    ("#00795a", "#3cc79b"),
    ("#98417c", "#e39cc8"),
    ("#5c5c5c", "#b9b9b9"),
)
"""Colour of each backend's lines, bars and name; ``series`` says which backend has which."""

_KNOWN = ("torch", "tensorflow", "mindspore", "numpy")
# Solid and wide below, dashed and narrow above: curves that coincide all stay visible.
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2.2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)), "-")
_WIDTHS = (2.8, 2.0, 1.8, 1.4, 1.0)

_INK, _GRID = "#010101", "#020202"
_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "svg.fonttype": "none",
    "svg.hashsalt": "mpcore",
    "text.parse_math": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.edgecolor": _GRID,
    "grid.color": _GRID,
    "axes.unicode_minus": False,
}
_WIDTH, _HEIGHT = 360.0, 232.0  # points, equal to CSS pixels at the size of a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 84.0, 10.0, 38.0
_ROW, _HEADING = 20.0, 24.0
_TICKS = (1, 2, 5, 10)
_LOG_FROM = 100.0  # largest over smallest loss; beyond, a linear axis hides the small ones


@dataclass(frozen=True)
class Chart:
    """One panel.

    Attributes:
        group: ``"loss"``, ``"difference"``, ``"scale"``, ``"speed"``, ``"memory"``, ``"norm"``.
        title: what it shows, for its heading.
        note: one line on how to read it; may be empty.
        simulated: backends in it whose numbers come from simulated arithmetic.
        svg: the drawing, safe to put into a page as it is.
    """

    group: str
    title: str
    note: str
    simulated: tuple[str, ...]
    svg: str


def number(value: Any) -> float:
    """Return a number of a result; ``"inf"``, ``"-inf"`` and ``"nan"`` are text there.

    Example:
        >>> number("-inf"), number(None)
        (-inf, nan)
    """
    return math.nan if value is None else float(value)


def format_scale(scale: float) -> str:
    """Return a loss scale as a reader thinks of it: a power of two where it is one.

    Example:
        >>> format_scale(65536.0), format_scale(1.0), format_scale(1000.0)
        ('2^16', '1', '1000')
    """
    if math.isfinite(scale) and scale > 0:
        mantissa, exponent = math.frexp(scale)
        if mantissa == 0.5 and not 1 <= scale < 1024:
            return f"2^{exponent - 1}"
    return f"{scale:.4g}"


def raised(text: str) -> str:
    """Return the text with its powers set as a page does.

    Example:
        >>> raised("worked: 2^16")
        'worked: 2¹⁶'
    """
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return re.sub(r"\^(-?\d+)", lambda found: found[1].translate(digits), text)


def format_loss(loss: float) -> str:
    """Return a loss with about five significant digits.

    Example:
        >>> format_loss(0.41231), format_loss(123.456), format_loss(1.2e-5), format_loss(0.0)
        ('0.4123', '123.46', '1.2e-05', '0')
    """
    size = abs(loss)
    if not math.isfinite(loss) or loss == 0:
        return f"{loss:.0f}"
    for limit, form in ((1e-3, ".1e"), (10, ".4f"), (1e3, ".2f"), (1e5, ".0f")):
        if size < limit:
            return f"{loss:{form}}"
    return f"{loss:.1e}"


def format_milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds, without the unit.

    Example:
        >>> format_milliseconds(0.0124), format_milliseconds(1.5), format_milliseconds(2.5e-4)
        ('12.4', '1500', '0.25')
    """
    milliseconds = seconds * 1e3
    for limit, form in ((1, ".2f"), (100, ".1f")):
        if milliseconds < limit:
            return f"{milliseconds:{form}}"
    return f"{milliseconds:.0f}"


def series(result: dict[str, Any]) -> dict[str, int]:
    """Return the place of every backend in ``PALETTE``; known backends always have the same."""
    names = dict.fromkeys(run["backend"] for run in result["runs"])
    others = [name for name in names if name not in _KNOWN]
    taken = {_KNOWN.index(name) for name in names if name in _KNOWN}
    free = [place for place in range(len(PALETTE)) if place not in taken] or [len(PALETTE) - 1]
    places = {name: free[min(i, len(free) - 1)] for i, name in enumerate(others)}
    return {name: places.get(name, _KNOWN.index(name) if name in _KNOWN else 0) for name in names}


def draw(result: dict[str, Any]) -> list[Chart]:
    """Return every chart that the result has numbers for, in the order of the page."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib lacks: the browser has it
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        drawn = (_losses, _differences, _scales, _speeds, _memories, _norms)
        return [chart for make in drawn for chart in make(result, series(result))]


# --- curves ---------------------------------------------------------------------------------


def _losses(result: dict[str, Any], places: dict[str, int]) -> Iterator[Chart]:
    yield from _curves(result, places, ("loss", "Loss", "loss"), result.get("bands") or {})


def _norms(result: dict[str, Any], places: dict[str, int]) -> Iterator[Chart]:
    yield from _curves(result, places, ("norm", "Gradient norm", "grad_norm"), {})


def _differences(result: dict[str, Any], places: dict[str, int]) -> Iterator[Chart]:
    """Yield one panel per policy: how far each backend is from the first, and the noise."""
    panels = [
        (policy, runs, _relative(runs), _finite((result.get("bands") or {}).get(policy)))
        for policy, runs in _by_policy(_with(result, "loss")).items()
    ]
    panels = [panel for panel in panels if any(not _empty(c) for c in panel[2].values())]
    values = [v for _, _, curves, band in panels for c in (*curves.values(), band) for v in c]
    limits = _log_limits([value for value in values if value > 0])
    steps = max((len(run["loss"]) for _, runs, _, _ in panels for run in runs), default=0)
    for index, (policy, runs, curves, band) in enumerate(panels):
        first = runs[0]["backend"]
        figure, axes = _panel(steps, "log", limits)
        axes.fill_between(range(len(band)), limits[0], band, **_band_look(places[first]))
        _lines(axes, curves, places, "default")
        text = f"Relative loss difference from {first} at each step under {policy}. Largest: "
        text += ", ".join(f"{name} {_largest(curve):.1e}" for name, curve in curves.items()) + "."
        note = f"shaded: rounding noise of {first}" if band else "relative"
        svg = _inline(figure, f"mp-difference-{index}", text)
        title = f"Difference from {first}, {policy}"
        yield Chart("difference", title, note, _simulated(runs), svg)


def _relative(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the relative distance of every other curve from the first; nan where it is 0."""
    reference = _finite(runs[0]["loss"])
    return {
        run["backend"]: [
            abs(own - ref) / abs(ref) if ref and own != ref else math.nan
            for own, ref in zip(_finite(run["loss"]), reference, strict=False)
        ]
        for run in runs[1:]
    }


def _curves(
    result: dict[str, Any],
    places: dict[str, int],
    names: tuple[str, str, str],
    bands: dict[str, list[Any]],
) -> Iterator[Chart]:
    """Yield one panel per policy; all share both axes, so that policies can be compared."""
    group, title, key = names
    drawable = _with(result, key)
    limits, log = _limits([value for run in drawable for value in _finite(run[key])])
    steps = max((len(run[key]) for run in drawable), default=0)
    for index, (policy, runs) in enumerate(_by_policy(drawable).items()):
        curves = {run["backend"]: _finite(run[key]) for run in runs}
        first = runs[0]["backend"]
        band = [number(value) for value in bands.get(policy) or []]
        figure, axes = _panel(steps, "log" if log else "linear", limits)
        _shade(axes, curves[first], band, places[first])
        _lines(axes, curves, places, "default")
        ends = ", ".join(f"{name} {format_loss(_last(curve))}" for name, curve in curves.items())
        text = f"{title} of each step under {policy}. Last values: {ends}."
        note = f"shaded: rounding noise around {first}" if band else ""
        svg = _inline(figure, f"mp-{group}-{index}", text)
        yield Chart(group, f"{title}, {policy}", note, _simulated(runs), svg)


def _scales(result: dict[str, Any], places: dict[str, int]) -> Iterator[Chart]:
    scaled = [run for run in result["runs"] if any(s != 1 for s in _finite(run.get("scale")))]
    steps = max((len(run["scale"]) for run in scaled), default=0)
    for index, (policy, runs) in enumerate(_by_policy(scaled).items()):
        curves = {run["backend"]: _log2(run["scale"]) for run in runs}
        limits, _ = _limits([v for curve in curves.values() for v in curve], least=2.0)
        figure, axes = _panel(steps, "linear", limits)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_TICKS))
        axes.tick_params(axis="y", labelsize=15, pad=9)  # powers are small print
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: raised(f"2^{y:.0f}")))
        _lines(axes, curves, places, "steps-post")
        skips = sum(_mark_skips(axes, run, curves[run["backend"]], places) for run in runs)
        text = f"Loss scale of each step under {policy}. {_scale_words(runs)}"
        note = "cross: the step was skipped" if skips else "no step was skipped"
        svg = _inline(figure, f"mp-scale-{index}", text)
        yield Chart("scale", f"Loss scale, {policy}", note, _simulated(runs), svg)


def _scale_words(runs: list[dict[str, Any]]) -> str:
    words = []
    for run in runs:
        skipped = sum(not stepped for stepped in run.get("stepped") or [])
        ends = [format_scale(number(run["scale"][place])) for place in (0, -1)]
        words.append(f"{run['backend']}: from {ends[0]} to {ends[1]}, {skipped} skipped steps.")
    return " ".join(words)


def _panel(steps: int, scale: str, limits: tuple[float, float]) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72)
    box = (_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM)
    axes = figure.add_axes(
        (box[0] / _WIDTH, box[1] / _HEIGHT, box[2] / _WIDTH, box[3] / _HEIGHT), facecolor="none"
    )
    figure.patch.set_visible(False)
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


def _lines(axes: Any, curves: dict[str, list[float]], places: dict[str, int], style: str) -> None:
    """Draw the curves and write each backend's name where its curve ends."""
    ends = {}
    for backend, curve in curves.items():
        place = places[backend]
        axes.plot(
            curve,
            color=_placeholder(place),
            linestyle=_DASHES[place],
            linewidth=_WIDTHS[place],
            drawstyle=style,
            zorder=3 + place,
            dash_capstyle="butt",
            clip_on=style == "default",
        )
        end = axes.transAxes.inverted().transform(axes.transData.transform((0, _last(curve))))[1]
        ends[backend] = min(max(float(end), 0.0), 1.0)
    gap = 16.0 / (_HEIGHT - _TOP - _BOTTOM)
    for backend, height in _spread(ends, gap).items():
        axes.text(
            1.03,
            height,
            _short(backend, 12),
            transform=axes.transAxes,
            color=_placeholder(places[backend]),
            verticalalignment="center_baseline",
        )


def _shade(axes: Any, curve: list[float], band: list[float], place: int) -> None:
    pairs = list(zip(curve, band, strict=False))
    axes.fill_between(
        range(len(pairs)),
        [value - abs(value) * width for value, width in pairs],
        [value + abs(value) * width for value, width in pairs],
        where=[math.isfinite(value) and math.isfinite(width) for value, width in pairs],
        **_band_look(place),
    )


def _band_look(place: int) -> dict[str, Any]:
    return {"color": _placeholder(place), "alpha": 0.22, "linewidth": 0, "zorder": 2}


def _mark_skips(axes: Any, run: dict[str, Any], curve: list[float], places: dict[str, int]) -> int:
    stepped = (run.get("stepped") or [])[: len(curve)]
    skips = [step for step, moved in enumerate(stepped) if not moved]
    axes.plot(
        skips,
        [curve[step] for step in skips],
        linestyle="",
        marker="x",
        markersize=9,
        markeredgewidth=2,
        color=_placeholder(places[run["backend"]]),
        clip_on=False,
        zorder=9,
    )
    return len(skips)


def _spread(heights: dict[str, float], gap: float) -> dict[str, float]:
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


# --- bars -----------------------------------------------------------------------------------


def _speeds(result: dict[str, Any], places: dict[str, int]) -> Iterator[Chart]:
    def bar(run: dict[str, Any]) -> tuple[float, float, str]:
        seconds = run.get("step_seconds") or {}
        median, high = number(seconds.get("median")), number(seconds.get("p90"))
        return median, high, f"{format_milliseconds(median)} ms"

    note = "median step, whisker up to the 90th percentile; shorter is faster"
    yield from _bars(result, places, ("speed", "Time of a step", note), bar)


def _memories(result: dict[str, Any], places: dict[str, int]) -> Iterator[Chart]:
    def bar(run: dict[str, Any]) -> tuple[float, float, str]:
        size = number(run.get("peak_memory_bytes"))
        return size, math.nan, f"{size / 1e6:.0f} MB"

    note = "1 MB is 1 000 000 bytes"
    yield from _bars(result, places, ("memory", "Peak memory", note), bar)


def _bars(
    result: dict[str, Any],
    places: dict[str, int],
    words: tuple[str, str, str],
    bar: Callable[[dict[str, Any]], tuple[float, float, str]],
) -> Iterator[Chart]:
    """Yield one panel of horizontal bars, a group per policy; nothing without a number."""
    group, title, note = words
    groups = _by_policy(result["runs"])
    bars = [bar(run) for run in result["runs"]]
    longest = max((v for b in bars for v in b[:2] if math.isfinite(v)), default=0.0)
    if longest <= 0:
        return
    height = len(groups) * _HEADING + len(result["runs"]) * _ROW + 4
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes((_RIGHT / _WIDTH, 0, 1 - _RIGHT / _WIDTH, 1), facecolor="none")
    axes.set(xlim=(0, longest / 0.56), ylim=(height, 0))  # the rest is for the numbers
    axes.set_axis_off()
    top, words_of_runs = 0.0, []
    for policy, runs in groups.items():
        _heading(axes, policy, top + _HEADING - 10)
        top += _HEADING
        for run in runs:
            text = _bar(axes, run, bar(run), top + _ROW / 2, places)
            words_of_runs.append(f"{run['backend']} {policy}: {text}.")
            top += _ROW
    svg = _inline(figure, f"mp-{group}", f"{title}. {' '.join(words_of_runs)}")
    yield Chart(group, title, note, (), svg)


def _heading(axes: Any, policy: str, middle: float) -> None:
    axes.text(
        -_RIGHT / (_WIDTH - _RIGHT),
        middle,
        _short(policy, 46),
        transform=axes.get_yaxis_transform(),
        fontweight="bold",
        verticalalignment="center_baseline",
    )


def _bar(
    axes: Any,
    run: dict[str, Any],
    values: tuple[float, float, str],
    middle: float,
    places: dict[str, int],
) -> str:
    """Draw one run's bar and return its text."""
    value, high, text = values
    simulated, known = bool(run.get("simulated")), math.isfinite(values[0])
    colour = _placeholder(places[run["backend"]])
    where = {"transform": axes.get_yaxis_transform(), "verticalalignment": "center_baseline"}
    axes.text(-0.03, middle, _short(run["backend"], 12), ha="right", color=colour, **where)
    text = text if known else run.get("status") or "no number"
    text += " simulated" if simulated and known else ""
    if known:
        bar = {"color": colour, "alpha": 0.3} if simulated else {"color": colour}
        axes.barh(middle, value, height=12, linewidth=0, **bar)
    if math.isfinite(high):
        axes.plot([value, high], [middle] * 2, color=_INK, linewidth=1.4, solid_capstyle="butt")
        axes.plot([high] * 2, [middle - 3.5, middle + 3.5], color=_INK, linewidth=1.4)
    end = max(v for v in (value, high, 0.0) if math.isfinite(v))
    start = end / axes.get_xlim()[1] + 0.02
    axes.text(start, middle, text, fontstyle="normal" if known else "italic", **where)
    return text


# --- numbers --------------------------------------------------------------------------------


def _by_policy(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run["policy"], []).append(run)
    return groups


def _with(result: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [run for run in result["runs"] if not _empty(_finite(run.get(key)))]


def _finite(values: Sequence[Any] | None) -> list[float]:
    """Return the numbers with everything non-finite as nan, which leaves a gap in a curve."""
    found = [number(value) for value in values or []]
    return [value if math.isfinite(value) else math.nan for value in found]


def _log2(values: Sequence[Any]) -> list[float]:
    return [math.log2(value) if value > 0 else math.nan for value in _finite(values)]


def _empty(curve: list[float]) -> bool:
    return all(math.isnan(value) for value in curve)


def _last(curve: list[float]) -> float:
    return next((value for value in reversed(curve) if not math.isnan(value)), math.nan)


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


def _simulated(runs: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(run["backend"] for run in runs if run.get("simulated"))


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


# --- SVG ------------------------------------------------------------------------------------


def _placeholder(place: int) -> str:
    return f"#03030{place}"


def _inline(figure: Figure, key: str, text: str) -> str:
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
    if colour == _INK:
        return f"{what}: currentColor"
    if colour == _GRID:
        return f"{what}: var(--grid, #d5d9de)"
    place = int(colour[-1])
    return f"{what}: var(--c{place}, {PALETTE[place][0]})"
