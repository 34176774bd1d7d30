"""What the depth of a comparison answers, a sentence each, for the top of the page."""

from __future__ import annotations

from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from mpcore.tools.report.dtypes import dtype_words
from mpcore.tools.report.numbers import number, raised
from mpcore.tools.report.view import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.tools.report.depth import Card
    from mpcore.tools.report.overflow import Overflow

__all__ = ["answers"]

_SHOWN = 3  # of what there may be many of; the rest stands further down


def answers(
    result: dict[str, Any], cards: Sequence[Card], overflows: Sequence[Overflow]
) -> dict[str, str]:
    """Return sentences by what they are about; empty where the result has nothing to say.

    Args:
        result: as in the docstring of ``mpcore.tools.report.report``.
        cards: of its causes.
        overflows: its post-mortems.
    """
    differ = any(pair.look[1] == "bad" for card in cards for pair in card.pairs)
    why = "Why they differ" if differ else "Layers that part"
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
    kind = "no cause found" if cause.kind == "unknown" else cause.kind
    return f"{kind}{' at ' if cause.layer else ', '}{cause.where}{pairs}"


def _places(overflows: Sequence[Overflow], name: Callable[[Overflow], str]) -> str:
    """Return what ``name`` says of the overflows, once each, with the runs it is true of."""
    return _list([f"{said} ({_runs(group)})" for said, group in grouped(overflows, name).items()])


def _runs(overflows: Sequence[Overflow]) -> str:
    told = [f"{backend} {policy}" for one in overflows for backend, policy, _ in one.runs]
    names = list(dict.fromkeys(told))
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _bytes(result: dict[str, Any]) -> str:
    runs = [run for run in result["runs"] if run.get("memory")]
    words = []
    for policy, group in grouped(runs, itemgetter("policy")).items():
        plans = dict.fromkeys(filter(None, (_size(run, "predicted") for run in group)))
        told = [f"{' or '.join(plans)} predicted"] if plans else []
        told += _measured([(run["backend"], _size(run, "measured")) for run in group])
        words.append(f"{policy} {', '.join(told)}")
    return "; ".join(words) + "." if words else ""


def _measured(sizes: list[tuple[str, str]]) -> list[str]:
    known = [(backend, size) for backend, size in sizes if size]
    if len(known) <= _SHOWN:
        return [f"{size} in {backend}" for backend, size in known]
    ordered = sorted((size for _, size in known), key=float)
    return [f"{ordered[0]} to {ordered[-1]} measured"]


def _size(run: dict[str, Any], how: str) -> str:
    size = number(run["memory"].get(f"{how}_bytes_per_param"))
    return f"{size:.3g}" if isfinite(size) else ""


def _list(words: Sequence[str]) -> str:
    if not words:
        return ""
    rest = len(words) - _SHOWN
    return "; ".join(words[:_SHOWN]) + (f"; {rest} more below" if rest > 0 else "") + "."
