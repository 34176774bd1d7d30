"""What the depth of a comparison answers, a sentence each, for the top of the page."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from mpcore.tools.report.dtypes import dtype_words
from mpcore.tools.report.numbers import raised
from mpcore.tools.report.view import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.tools.report.depth import Card
    from mpcore.tools.report.overflow import Overflow
    from mpcore.tools.report.result import Result

__all__ = ["answers"]

_SHOWN = 3  # of what there may be many of; the rest stands further down


def answers(result: Result, cards: Sequence[Card], overflows: Sequence[Overflow]) -> dict[str, str]:
    """Return sentences by what they are about; empty where the result has nothing to say.

    Args:
        result: the comparison.
        cards: of its root causes.
        overflows: its post-mortems.
    """
    differ = any(pair.look[1] == "bad" for card in cards for pair in card.pairs)
    why = "Why they differ" if differ else "Layers that diverge"
    return {
        why: _list([_why(card) for card in cards]),
        "First overflow": _places(overflows, lambda found: f"{found.layer}, {found.phase}"),
        "Largest safe scale": _places(overflows, lambda found: raised(found.safe)),
        "Dtypes": dtype_words(result),
        "Bytes per parameter": _bytes(result),
    }


def _why(card: Card) -> str:
    cause, count = card.cause, len(card.pairs)
    pairs = f" ({count} pairs)" if count > 1 else ""
    kind = "no root cause found" if cause.kind == "unknown" else cause.kind
    return f"{kind}{' at ' if cause.layer else ', '}{cause.where}{pairs}"


def _places(overflows: Sequence[Overflow], name: Callable[[Overflow], str]) -> str:
    """Return what ``name`` says of the overflows, once each, with the runs it is true of."""
    return _list([f"{said} ({_runs(group)})" for said, group in grouped(overflows, name).items()])


def _runs(overflows: Sequence[Overflow]) -> str:
    told = [f"{backend} {policy}" for one in overflows for backend, policy, _ in one.runs]
    names = list(dict.fromkeys(told))
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _bytes(result: Result) -> str:
    runs = [(run.policy, run.backend, run.memory) for run in result.runs if run.memory]
    words = []
    for policy, group in grouped(runs, itemgetter(0)).items():
        plans = dict.fromkeys(f"{memory.predicted_bytes_per_param:.3g}" for *_, memory in group)
        told = [(backend, f"{memory.measured_bytes_per_param:.3g}") for _, backend, memory in group]
        if {size for _, size in told} == set(plans) and len(plans) == 1:
            words.append(f"{policy} {told[0][1]}, as predicted")
            continue
        words.append(", ".join([f"{policy} {' or '.join(plans)} predicted", *_measured(told)]))
    return "; ".join(words) + "." if words else ""


def _measured(sizes: list[tuple[str, str]]) -> list[str]:
    if len(sizes) <= _SHOWN:
        return [f"{size} in {backend}" for backend, size in sizes]
    ordered = sorted((size for _, size in sizes), key=float)
    return [f"{ordered[0]} to {ordered[-1]} measured"]


def _list(words: Sequence[str]) -> str:
    if not words:
        return ""
    rest = len(words) - _SHOWN
    return "; ".join(words[:_SHOWN]) + (f"; {rest} more below" if rest > 0 else "") + "."
