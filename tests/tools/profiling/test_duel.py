"""The sign test: its error rate exactly, its power on noise, and the order of its steps."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from mpcore.tools.profiling.duel import ERROR_RATE, FASTER, SLOWER, decision, duel, settled


def rates(faster: float, slower: float, *, either: bool) -> dict[str, float]:
    """Return how often each decision falls, for pairs that are won and lost so often.

    ``"pairs"`` is how many there are on the mean.
    """
    states, found = {(0, 0): 1.0}, {FASTER: 0.0, SLOWER: 0.0, "": 0.0}
    pairs, taken = 0, 0.0
    while states:
        after: dict[tuple[int, int], float] = {}
        for (won, lost), share in states.items():
            for step, chance in (((1, 0), faster), ((0, 1), slower), ((0, 0), 1 - faster - slower)):
                if chance:
                    key = won + step[0], lost + step[1]
                    after[key] = after.get(key, 0.0) + share * chance
        pairs, states = pairs + 1, {}
        for (won, lost), share in after.items():
            told = decision(won, lost, pairs, either=either)
            if told is None:
                states[won, lost] = share
            else:
                found[told] += share
                taken += share * pairs
    return found | {"pairs": taken}


@pytest.mark.parametrize("either", [False, True])
@pytest.mark.parametrize("within", [0.0, 0.1, 0.6])
def test_what_gains_nothing_is_rarely_called_faster(either: bool, within: float) -> None:
    found = rates((1 - within) / 2, (1 - within) / 2, either=either)
    assert found[FASTER] <= ERROR_RATE
    assert found[FASTER] + found[SLOWER] + found[""] == pytest.approx(1)


def test_ties_end_early_and_what_wins_three_of_four_does_not() -> None:
    assert rates(0.45, 0.45, either=True)["pairs"] < 30
    assert rates(0.45, 0.45, either=False)["pairs"] < 22
    assert rates(0.76, 0.08, either=True)[FASTER] > 0.94


def test_a_challenger_that_wins_none_of_its_first_pairs_is_dropped() -> None:
    assert decision(0, 4, 4) == ""
    assert decision(0, 0, 4) == ""
    assert decision(1, 3, 4) is None
    assert decision(0, 4, 4, either=True) is None
    assert rates(0.76, 0.08, either=False)[FASTER] > 0.9
    assert rates(0.1, 0.8, either=False)["pairs"] < 6


def test_the_stated_rate_is_that_of_fair_coins() -> None:
    assert rates(0.5, 0.5, either=True)[FASTER] == pytest.approx(ERROR_RATE, abs=0.001)


def test_what_wins_nine_of_ten_is_found() -> None:
    assert rates(0.9, 0.05, either=False)[FASTER] > 0.999
    assert rates(0.05, 0.9, either=True)[SLOWER] > 0.999


def drawn(gain: float, noise: float, seed: int, within: float = 0.0) -> tuple[str, int, list[str]]:
    """Return the decision for steps of so much noise, the pairs, and the order of the steps."""
    rng, order = random.Random(seed), []

    def step(name: str, seconds: float) -> float:
        order.append(name)
        return seconds * rng.lognormvariate(0, noise)

    found = duel(
        lambda: step("a", 1.0),
        lambda: step("b", 1.0 - gain),
        seconds=60.0,
        within=within,
        either=bool(within),
        seed=seed,
    )
    return found.decision, len(found.now), order


def test_a_difference_that_does_not_matter_ends_a_duel() -> None:
    ties = [drawn(0.0, 0.02, seed, 0.02) for seed in range(50)]
    assert all(not told for told, *_ in ties)
    assert sum(pairs for _, pairs, _ in ties) / 50 < 14
    assert sum(pairs for _, pairs, _ in (drawn(0.005, 0.1, s, 0.02) for s in range(20))) / 20 > 14
    faster = [drawn(0.06, 0.02, seed, 0.02)[0] for seed in range(50)]
    assert faster.count(FASTER) >= 49


def test_a_duel_is_settled_when_the_smaller_median_cannot_be_far_behind() -> None:
    assert settled([0.9, 0.99, 1.0, 1.0, 1.0, 1.0, 1.01, 1.2], 0.02)
    assert settled([0.9, 0.99, 1.0, 1.01, 1.01, 1.0, 1.2, 1.2], 0.02)
    assert not settled([0.9, 0.97, 1.0, 1.01, 1.01, 1.0, 1.2, 1.2], 0.02)
    assert settled([0.9, 0.9, 0.99, 0.99, 1.0, 1.0, 1.01, 1.2], 0.02)
    assert not settled([0.9, 0.9, 0.99, 0.99, 1.0, 1.0, 1.03, 1.2], 0.02)
    assert not settled([1.07] * 8, 0.02)  # the sign test tells
    assert not settled([0.93] * 8, 0.02)


def test_power_on_a_quiet_and_a_busy_machine() -> None:
    quiet = [drawn(0.05, 0.02, seed)[0] for seed in range(100)]
    busy = [drawn(0.25, 0.10, seed)[0] for seed in range(100)]
    nothing = [drawn(0.0, 0.10, seed)[0] for seed in range(400)]
    assert quiet.count(FASTER) >= 98
    assert busy.count(FASTER) >= 98
    assert nothing.count(FASTER) <= 12  # 3 %: the rate, and two standard deviations


def test_blocks_in_an_order_that_is_drawn_behind_a_step_that_is_not_timed() -> None:
    _, pairs, order = drawn(0.5, 0.01, 0)
    assert pairs == 8  # the challenger wins them all
    runs = ["".join(run) for _, run in groupby(order)]
    # Where one side ends a pair and begins the next its caches are warm: no step is dropped.
    assert {len(run) for run in runs} == {3, 5}
    assert sum((len(run) - 1) // 2 for run in runs) == 16
    firsts = [pair[0] for pair in zip(*[iter(_blocks(runs))] * 2, strict=True)]
    assert set(firsts) == {"a", "b"}


def _blocks(runs: list[str]) -> list[str]:
    return [run[0] for run in runs for _ in range((len(run) - 1) // 2)]
