"""Everything that a verdict judged, and what would have shown, in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

from mpcore.tools.report.numbers import format_times, short_power

if TYPE_CHECKING:
    from mpcore.tools.report.result import Number, Pair

__all__ = [
    "MEANS",
    "JudgedRow",
    "decisive_words",
    "judged_rows",
    "judged_words",
    "nearness",
    "power_words",
]

MEANS = {
    "loss": "loss of one step",
    "gradient": "gradient of one step",
    "update": "update of one step",
    "statistics": "running statistics of one step",
    "zeros": "zeros of a gradient",
    "accuracy": "test accuracy",
    "curve": "loss curve",
}
"""What each number that a verdict judges is, in words."""


@dataclass(frozen=True)
class JudgedRow:
    """One number that a verdict judged, ready for the cells of a table."""

    name: str
    size: str
    tolerance: str
    where: str
    shows: str
    beyond: bool
    known: str


def judged_rows(pair: Pair) -> list[JudgedRow]:
    """Return every number of a pair beside what noise explains, the worst tensor and the power."""
    return [
        JudgedRow(
            MEANS[number.name],
            short_power(number.size, 1),
            short_power(number.tolerance, 1),
            _where(number),
            _shows(number),
            number.beyond,
            number.known.replace("_", " "),
        )
        for number in pair.numbers
    ]


def _decisive(pair: Pair) -> Number | None:
    """Return the number that decided the verdict: the farthest beyond noise, or the nearest to it.

    A number that a known difference explains decides only where no other is beyond.
    """
    ranked = sorted(pair.numbers, key=lambda n: (n.beyond, not n.known, _share(n)))
    return ranked[-1] if ranked else None


def nearness(pair: Pair) -> float:
    """Return how many times what noise explains the decisive number is; 0 without one."""
    number = _decisive(pair)
    return 0.0 if number is None else _share(number)


def decisive_words(pair: Pair) -> str:
    """Return the decisive number in words; empty where nothing was judged."""
    number = _decisive(pair)
    if number is None:
        return ""
    name, where = MEANS[number.name], _where(number)
    said = f"{name} {short_power(number.size, 1)} apart" + (f" ({where})" if where else "")
    share = _share(number)
    if not isfinite(share):
        return f"{said}, where noise explains none"
    if number.known:
        return f"{said}, explained by the known difference {number.known.replace('_', ' ')}"
    if number.beyond:
        return f"{said}, {format_times(share)} what noise explains"
    explained = short_power(number.tolerance, 1)
    return f"{said}, where noise explains {explained}"


def _share(number: Number) -> float:
    if number.tolerance > 0:
        return number.size / number.tolerance
    return inf if number.size > 0 else 0.0


def judged_words(pair: Pair) -> str:
    """Return in one line every number beside what noise explains; empty where none was judged."""
    words = [
        f"{number.name} {short_power(number.size, 1)} of {short_power(number.tolerance, 1)}"
        + (f" ({_where(number)})" if number.tensor else "")
        for number in pair.numbers
    ]
    return ", ".join(words)


def power_words(pair: Pair) -> str:
    """Return in one line the smallest errors that these steps would have shown."""
    told = []
    for number in pair.numbers:
        if number.name in ("gradient", "update", "statistics"):
            told.append(f"{_shows(number)} in one tensor's {number.name}{_blind(number)}")
        elif number.name == "accuracy":
            told.append(f"{_shows(number)} in the accuracy")
    return "; ".join(told)


def _blind(number: Number) -> str:
    """Return in words how many tensors not even twice the value would have shown in."""
    if number.shows is None:
        return ", not even twice the value"
    if not number.blind:
        return ""
    tensors = "1 tensor" if number.blind == 1 else f"{number.blind} tensors"
    return f" (in {tensors} not even twice the value)"


def _where(number: Number) -> str:
    if number.step is None:
        return number.tensor
    return f"{number.tensor}, step {number.step}" if number.tensor else f"step {number.step}"


def _shows(number: Number) -> str:
    if number.name == "curve":
        return ""
    return "no error" if number.shows is None else f"an error of {short_power(number.shows)}"
