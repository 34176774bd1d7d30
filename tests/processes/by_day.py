"""What ``make test`` leaves to the night: further cases of what runs, and what takes long alone.

By what a case took last (``tests/seconds_of_cases.json``; ``make seconds`` writes it after a run
of all cases), a test function gets ``SHARE`` CPU seconds by day: a cover of the values it is
parametrized with, one case at least. One whose single case takes longer than ``LONGEST`` runs by
night. The marker ``day`` keeps a function by day whatever it takes, ``day(8)`` gives it 8 seconds
for its cases. A plain ``pytest`` runs all cases, ``make nightly`` the full products of ``nightly``
too.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Mapping

import pytest

SHARE = 1.0  # CPU seconds of a function, where nothing else is said
LONGEST = 4.0  # CPU seconds of a single case

Values = frozenset[tuple[str, Hashable]]


def left_to_the_night(items: list[pytest.Item], means: Mapping[str, float]) -> set[pytest.Item]:
    """Return the tests that do not run by day.

    ``means`` has the CPU seconds of a case by function; what is not in it is cheap or new, and
    runs.
    """
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[function_of(item.nodeid)].append(item)
    left: set[pytest.Item] = set()
    for name, of_it in cases.items():
        count = by_day(means.get(name, 0.0), of_it[0].get_closest_marker("day"))
        if count < len(of_it):
            kept = cover({item.nodeid: values_of(item) for item in of_it}, count)
            left.update(item for item in of_it if item.nodeid not in kept)
    return left


def by_day(mean: float, marker: pytest.Mark | None) -> float:
    """Return how many cases of a function run by day, by the seconds of one."""
    if mean == 0.0:
        return float("inf")
    if marker is None and mean > LONGEST:
        return 0
    share = marker.args[0] if marker is not None and marker.args else SHARE
    return max(1, int(share / mean))


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def values_of(item: pytest.Item) -> Values:
    """Return what a case sets: a pair of name and value for each parameter."""
    spec = getattr(item, "callspec", None)
    if spec is None:
        return frozenset()
    plain = (str, int, float, bool, type(None))
    return frozenset(
        (name, value if isinstance(value, plain) else id(value))
        for name, value in spec.params.items()
    )


def cover(cases: Mapping[str, Values], count: float) -> set[str]:
    """Return up to ``count`` cases, each the one with most values that no earlier one had.

    Among equals a hash of the name decides: what runs depends neither on the order in a file nor
    on chance, and is spread over a long list.
    """
    kept: set[str] = set()
    met: set[tuple[str, Hashable]] = set()
    order = sorted(cases, key=lambda name: hashlib.sha256(name.encode()).digest())
    while len(kept) < count and order:
        best = max(order, key=lambda name: len(cases[name] - met))
        order.remove(best)
        kept.add(best)
        met |= cases[best]
    return kept
