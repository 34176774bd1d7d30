"""What changed between two results of a comparison: verdicts, numbers, known differences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, isnan
from typing import TYPE_CHECKING

from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.tools.report.result import Number, Pair, Result

__all__ = ["Changes", "Circumstance", "NumberChange", "PairChange", "changes"]

_Key = frozenset[tuple[str, str]]  # which of two runs stands first is no change


@dataclass(frozen=True)
class Circumstance:
    """Something under which the two results were made that is not the same.

    Attributes:
        name: of a setting, a package or a run.
        a: what it was in the first result; empty where it has none.
        b: in the second.
    """

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class NumberChange:
    """A number of a pair that moved by more than its tolerance, or across it.

    Attributes:
        name: as in the results.
        a: in the first result; null where it was not judged.
        b: in the second.
    """

    name: str
    a: Number | None
    b: Number | None

    @property
    def moved(self) -> bool:
        """Whether it lies farther from its counterpart than noise explains, or crossed the line."""
        if self.a is None or self.b is None or self.a.beyond != self.b.beyond:
            return True
        return self.times > 1

    @property
    def times(self) -> float:
        """How many times the larger tolerance it moved; inf where there is no counterpart."""
        if self.a is None or self.b is None:
            return inf
        away, tolerance = abs(self.a.size - self.b.size), max(self.a.tolerance, self.b.tolerance)
        if isnan(away) or away == 0:  # inf stayed inf
            return 0.0
        if tolerance == inf:  # noise alone decides there
            return 0.0
        return away / tolerance if tolerance > 0 else inf


@dataclass(frozen=True)
class PairChange:
    """One pair of runs in both results.

    Attributes:
        names: of the two configurations.
        policy: of both, or of one and the other.
        a: verdict in the first result; null where it has no such pair.
        b: in the second.
        changed: whether the verdicts are two, whatever their reasons.
        numbers: those that moved, the farthest first; none where one side judged nothing.
        gained: known differences of the second result alone.
        lost: of the first alone.
    """

    names: tuple[str, str]
    policy: str
    a: str | None
    b: str | None
    changed: bool
    numbers: tuple[NumberChange, ...] = ()
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changes:
    """Everything that changed.

    Attributes:
        pairs: every pair of either result, those whose verdict changed first.
        circumstances: what the results were made under, where that is not the same.
    """

    pairs: tuple[PairChange, ...]
    circumstances: tuple[Circumstance, ...] = ()

    @property
    def verdicts(self) -> tuple[PairChange, ...]:
        """The pairs whose verdict changed, or that one result lacks."""
        return tuple(pair for pair in self.pairs if pair.changed)


def changes(a: Result, b: Result) -> Changes:
    """Return what changed from ``a`` to ``b``.

    Raises:
        ExperimentError: neither holds a pair, or one holds the same pair twice.
    """
    first, second = _by_key(a), _by_key(b)
    if not first and not second:
        msg = "two results must hold pairs to be set side by side, neither holds one"
        raise ExperimentError(msg)
    found = [_pair_change(first.get(key), second.get(key)) for key in {**first, **second}]
    return Changes(
        tuple(sorted(found, key=lambda pair: not pair.changed)), tuple(_circumstances(a, b))
    )


def _by_key(result: Result) -> dict[_Key, Pair]:
    found: dict[_Key, Pair] = {}
    for pair in result.pairs:
        key = frozenset(pair.keys)
        if key in found:
            names = f"{pair.a} and {pair.b} ({pair.policy})"
            msg = f"a result must hold each pair once, got {names} twice"
            raise ExperimentError(msg)
        found[key] = pair
    return found


def _pair_change(a: Pair | None, b: Pair | None) -> PairChange:
    pair = a or b
    assert pair is not None  # noqa: S101  # the key came from one of them
    (_, own), (_, other) = pair.keys
    before, after = (None if each is None else each.verdict for each in (a, b))
    kinds = {verdict and verdict.partition(": ")[0] for verdict in (before, after)}
    known = [[] if each is None else _known(each) for each in (a, b)]
    return PairChange(
        (pair.a, pair.b),
        f"{own} - {other}" if pair.across else own,
        before,
        after,
        changed=len(kinds) == 2,
        numbers=_moved(a, b),
        gained=tuple(name for name in known[1] if name not in known[0]),
        lost=tuple(name for name in known[0] if name not in known[1]),
    )


def _moved(a: Pair | None, b: Pair | None) -> tuple[NumberChange, ...]:
    if a is None or b is None or not a.numbers or not b.numbers:
        return ()
    first, second = ({number.name: number for number in pair.numbers} for pair in (a, b))
    found = [NumberChange(name, first.get(name), second.get(name)) for name in {**first, **second}]
    return tuple(sorted((one for one in found if one.moved), key=lambda one: -one.times))


def _known(pair: Pair) -> list[str]:
    """Return the known differences that a pair names; "wrong in ..." belongs to what precedes."""
    texts = (number.known for number in pair.numbers if number.known)
    return list(
        dict.fromkeys(name for text in texts for name in re.split(r", (?!wrong in )", text))
    )


# --- circumstances --------------------------------------------------------------------------


def _circumstances(a: Result, b: Result) -> Iterable[Circumstance]:
    first, second = _made_under(a), _made_under(b)
    for name in {**first, **second}:
        left, right = first.get(name, ""), second.get(name, "")
        if left != right:
            yield Circumstance(name, left, right)
    runs = {run.key: run for run in b.runs}
    for run in a.runs:
        other = runs.get(run.key, run)  # a run that one lacks is told by its pairs
        name = " ".join(run.key)
        if run.status != other.status:
            yield Circumstance(f"run of {name}", run.status, other.status)
        if run.device != other.device:
            yield Circumstance(f"device of {name}", run.device, other.device)


def _made_under(result: Result) -> dict[str, str]:
    settings = vars(result.settings) if result.settings else {}
    found = {"experiment": result.experiment}
    found |= {name.replace("_", " "): str(value) for name, value in settings.items()}
    found["interrupted"] = "yes" if result.interrupted else "no"
    for run in result.runs:
        found |= {f"{name} in {run.backend}": text for name, text in run.versions.items()}
    return found
