"""What changed between two results, in words and as the rows of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mpcore.tools.report.judged import MEANS
from mpcore.tools.report.numbers import NONE, format_times, short_power

if TYPE_CHECKING:
    from mpcore.tools.report.changes import Changes, NumberChange
    from mpcore.tools.report.result import Number

__all__ = ["NumberRow", "known_rows", "number_rows", "split_verdict", "verdicts_line"]


class NumberRow(NamedTuple):
    """A number that moved, ready for the cells of a table."""

    pair: str
    policy: str
    name: str
    a: str
    b: str
    moved: str
    where: str


def verdicts_line(changes: Changes) -> str:
    """Return the answer in a sentence: how many verdicts changed, and what else did."""
    alone = sum(None in (pair.a, pair.b) for pair in changes.pairs)
    total, changed = len(changes.pairs) - alone, len(changes.verdicts) - alone
    words = f"{changed or 'None'} of {total} verdict{'' if total == 1 else 's'} changed"
    if alone:
        words += f"; {_count(alone, 'pair')} in one result alone"
    numbers = sum(len(pair.numbers) for pair in changes.pairs)
    if numbers:
        words += f"; {_count(numbers, 'number')} moved beyond tolerance"
    return f"{words}."


def split_verdict(verdict: str | None) -> tuple[str, str]:
    """Return a verdict and its reason; a pair that is not there has neither.

    Examples:
        >>> split_verdict("different: beyond noise"), split_verdict("same"), split_verdict(None)
        (('different', 'beyond noise'), ('same', ''), ('no such pair', ''))
    """
    kind, _, reason = ("no such pair" if verdict is None else verdict).partition(": ")
    return kind, reason


def number_rows(changes: Changes) -> list[NumberRow]:
    """Return every number that moved, pairs in their order, the farthest first in each."""
    return [
        NumberRow(
            " and ".join(pair.names),
            pair.policy,
            MEANS.get(number.name, number.name),
            _size(number.a),
            _size(number.b),
            _how(number),
            _where(number),
        )
        for pair in changes.pairs
        for number in pair.numbers
    ]


def known_rows(changes: Changes) -> list[tuple[str, str, str, str]]:
    """Return (gained or lost, the known difference, pair, policy) of all pairs."""
    return [
        (word, name, " and ".join(pair.names), pair.policy)
        for pair in changes.pairs
        for word, names in (("gained", pair.gained), ("lost", pair.lost))
        for name in names
    ]


def _count(number_of: int, noun: str) -> str:
    return f"{number_of} {noun}{'' if number_of == 1 else 's'}"


def _size(number: Number | None) -> str:
    if number is None:
        return NONE
    return f"{short_power(number.size, 1)} (noise {short_power(number.tolerance, 1)})"


def _how(number: NumberChange) -> str:
    if number.a is None or number.b is None:
        return "judged in B alone" if number.a is None else "judged in A alone"
    far = f", by {format_times(number.times)}" if number.times > 1 else ""
    if number.a.beyond != number.b.beyond:
        return f"{'beyond' if number.b.beyond else 'within'} noise now{far}"
    return f"{'farther' if number.b.size > number.a.size else 'nearer'}{far}"


def _where(number: NumberChange) -> str:
    """Return the worst tensor, that of B first; both where they are two."""
    places = [each.tensor for each in (number.a, number.b) if each is not None and each.tensor]
    return " | ".join(dict.fromkeys(places))
