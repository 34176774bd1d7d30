"""Everything that a verdict judged, and what would have shown, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.tools.report.numbers import short_power

if TYPE_CHECKING:
    from mpcore.tools.report.result import Number, Pair

__all__ = ["judged_rows", "judged_words", "power_words"]

_MEANS = {
    "loss": "loss of one step",
    "gradient": "gradient of one step",
    "update": "update of one step",
    "statistics": "running statistics of one step",
    "zeros": "zeros of a gradient",
    "accuracy": "test accuracy",
    "curve": "loss curve",
}


def judged_rows(pair: Pair) -> list[tuple[str, str, str, str, str]]:
    """Return (number, size, what noise explains, worst tensor and step, what would have shown)."""
    return [
        (
            _MEANS[number.name] + (" (beyond)" if number.beyond else ""),
            short_power(number.size, 1),
            short_power(number.tolerance, 1),
            _where(number),
            _shows(number),
        )
        for number in pair.numbers
    ]


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
            blind = f" (none in {number.blind} tensors)" if number.blind else ""
            told.append(f"{_shows(number)} in one tensor's {number.name}{blind}")
        elif number.name == "accuracy":
            told.append(f"{_shows(number)} in the accuracy")
    return ", ".join(told)


def _where(number: Number) -> str:
    if number.step is None:
        return number.tensor
    return f"{number.tensor}, step {number.step}" if number.tensor else f"step {number.step}"


def _shows(number: Number) -> str:
    if number.name == "curve":
        return ""
    return "nothing" if number.shows is None else f"an error of {short_power(number.shows)}"
