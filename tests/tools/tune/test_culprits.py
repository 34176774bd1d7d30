"""Delta debugging: planted culprits are found, clean models have none, sixty steps are enough."""

from __future__ import annotations

import random
from math import inf, sqrt

import pytest

from mpcore.tools.tune.culprits import MOST, find_culprits


class Net:
    """Units that round, some much more; errors of independent units add up by squares."""

    def __init__(self, count: int, bad: dict[int, float], seed: int) -> None:
        rng = random.Random(seed)
        self.units = [f"u{i}" for i in range(count)]
        self.own = {unit: rng.lognormvariate(0.0, 0.4) for unit in self.units}
        self.own |= {f"u{i}": size for i, size in bad.items()}
        self.asked: list[frozenset[str]] = []

    def error(self, low: frozenset[str]) -> float:
        self.asked.append(low)
        return 1e-3 * sqrt(sum(self.own[unit] ** 2 for unit in low))


@pytest.mark.parametrize("count", [60, 64])
def test_up_to_five_are_found_within_sixty_steps(count: int) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        places = rng.sample(range(count), seed % 6)
        bad = {place: rng.choice([60.0, 300.0, 1e4, inf]) for place in places}
        net = Net(count, bad, seed)
        found = find_culprits(net.units, net.error, seed=seed)
        assert found.units == tuple(f"u{place}" for place in sorted(places)), seed
        assert found.whole
        assert found.evaluations == len(net.asked) <= MOST


def test_no_set_is_run_twice() -> None:
    net = Net(64, {3: 500.0, 40: 500.0}, 0)
    find_culprits(net.units, net.error)
    assert len(set(net.asked)) == len(net.asked)


def test_one_that_was_only_bad_beside_another_is_given_back() -> None:
    def error(low: frozenset[str]) -> float:
        both = {"a0", "a9"} <= low
        return 1e-3 * sqrt(len(low)) * (100.0 if both else 1.0)

    found = find_culprits([f"a{i}" for i in range(16)], error)
    assert len(found.units) == 1
    assert set(found.units) < {"a0", "a9"}
    assert found.whole


def test_where_every_unit_is_to_blame_that_is_said() -> None:
    found = find_culprits([f"u{i}" for i in range(64)], lambda low: inf if low else 0.0)
    assert not found.whole
    assert found.evaluations <= MOST


def test_an_error_that_is_not_a_number_is_bad() -> None:
    def error(low: frozenset[str]) -> float:
        return float("nan") if "u5" in low else 1e-3 * sqrt(len(low))

    assert find_culprits([f"u{i}" for i in range(20)], error).units == ("u5",)
