"""Races and confirmations on synthetic clocks: who leads, in how many steps, how often wrongly."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from mpcore.tools.profiling.duel import FASTER, SLOWER, duel
from mpcore.tools.tune.again import Again, decided
from mpcore.tools.tune.race import NOISY, challenge, race, rounds


def clocks(times: dict[str, float], noise: float, seed: int) -> dict:
    rng = random.Random(seed)
    return {
        name: lambda seconds=seconds: seconds * rng.lognormvariate(0, noise)
        for name, seconds in times.items()
    }


def raced(times: dict[str, float], noise: float, seed: int):
    return race(clocks(times, noise, seed), seconds=60.0, seed=seed)


def test_clear_losers_are_left_out_after_four_rounds() -> None:
    found = raced({"a": 1.3, "b": 1.0, "c": 1.4}, 0.02, 0)
    assert found.best == "b"
    assert found.decisions == {"a": SLOWER, "b": "", "c": SLOWER}
    assert {len(seconds) for seconds in found.seconds.values()} == {4}
    assert found.steps <= 4 * 3 * 3


def test_who_takes_far_longer_is_left_out_after_two_rounds() -> None:
    found = raced({"a": 9.0, "b": 1.0, "c": 1.4, "d": 2.5}, 0.02, 0)
    assert found.best == "b"
    assert found.decisions == {"a": SLOWER, "b": "", "c": SLOWER, "d": SLOWER}
    assert {name: len(own) for name, own in found.seconds.items()} == {
        "a": 2,
        "b": 4,
        "c": 4,
        "d": 2,
    }
    alone = raced({"a": 9.0, "b": 1.0}, 0.02, 0)
    assert (alone.best, alone.decisions["a"], len(alone.seconds["b"])) == ("b", SLOWER, 2)
    assert 0 < alone.noise < NOISY


def test_one_that_stalls_once_stays() -> None:
    times = iter([1.0, *[5.0] * 2, *[1.0] * 99])  # its first timed block, five times as long
    found = race({"a": lambda: next(times), "b": lambda: 1.1}, seconds=60.0, seed=0)
    assert found.best == "a"
    assert len(found.seconds["a"]) >= 4


def test_a_tie_ends_when_nobody_left_is_surely_slower() -> None:
    found = [raced({"a": 1.0, "b": 1.0, "c": 1.3}, 0.01, seed) for seed in range(50)]
    assert {one.best for one in found} == {"a", "b"}
    assert fmean(one.steps for one in found) < 60
    assert all(len(one.seconds["c"]) == 4 for one in found)


@pytest.mark.parametrize(("noise", "gap", "wrong"), [(0.02, 0.03, 2), (0.1, 0.25, 2)])
def test_the_leader_is_rarely_slower(noise: float, gap: float, wrong: int) -> None:
    times = {"a": 1 + gap, "b": 1.0, "c": 1 + gap, "d": 1.5}
    found = [raced(times, noise, seed).best for seed in range(300)]
    assert len(found) - found.count("b") <= wrong


@pytest.mark.parametrize("others", [{"c": 1.04}, {"c": 1.04, "d": 1.06}])
def test_noisy_rounds_are_known_and_take_no_more_steps(others: dict[str, float]) -> None:
    times = {"a": 1.0, "b": 1.02, **others}
    quiet = [raced(times, 0.02, seed) for seed in range(50)]
    noisy = [raced(times, 0.15, seed) for seed in range(50)]
    assert sum(one.noise < NOISY for one in quiet) >= 48
    assert sum(one.noise > NOISY for one in noisy) >= 40
    both = [*quiet, *noisy]
    assert 6 <= max(len(one.seconds["a"]) for one in both) <= 8
    assert 60 < max(one.steps for one in both) <= 90


def test_rounds_are_of_all_and_end_by_count() -> None:
    seconds, steps = rounds(clocks({"a": 1.0, "b": 2.0}, 0.0, 0), 4, 0)
    assert seconds == {"a": [1.0] * 4, "b": [2.0] * 4}
    assert 17 <= steps <= 24


def test_a_challenger_that_wins_nothing_is_dropped_after_two_pairs() -> None:
    assert challenge([1.0]) is None
    assert challenge([1.0, 1.0]) == ""
    assert challenge([0.9, 1.2]) is None
    assert challenge([0.9, 0.9, 0.9, 0.9]) == FASTER
    assert challenge([0.97, 0.97, 0.97, 0.97]) is None
    assert challenge([0.9, 0.9, 1.1, 1.1]) == ""
    assert challenge([0.97] * 8) == FASTER
    assert challenge([0.97] * 7 + [1.1]) == FASTER
    assert challenge([0.97] * 6 + [1.1] * 2) == ""
    assert challenge([0.97] * 4, briefly=True) == ""
    assert challenge([0.9] * 4, briefly=True) == FASTER


def led(gain: float, noise: float, seed: int) -> tuple[bool, int]:
    one = clocks({"a": 1.0, "b": 1.0 - gain}, noise, seed)
    found = duel(one["a"], one["b"], seconds=60.0, seed=seed, decide=challenge)
    return found.decision == FASTER, found.steps


def test_what_gains_is_tried_on_few_steps_and_what_does_not_on_fewer() -> None:
    gains = [led(0.2, 0.02, seed) for seed in range(100)]
    assert all(won for won, _ in gains)
    assert max(steps for _, steps in gains) <= 24
    ties = [led(0.0, 0.02, seed) for seed in range(300)]
    assert fmean(steps for _, steps in ties) < 22
    assert sum(won for won, _ in ties) <= 12
    assert sum(won for won, _ in (led(0.04, 0.02, seed) for seed in range(100))) >= 90


def settled_by(gain: float, noise: float, seed: int, *, named: bool) -> str:
    rng, processes, found = random.Random(seed), list[list[float]](), None
    while found is None:
        processes.append([(1 - gain) * rng.lognormvariate(0, noise) for _ in range(4)])
        found = decided(processes, named=named)
    return found


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_what_gains_nothing_rarely_wins_again(noise: float) -> None:
    found = [settled_by(0.0, noise, seed, named=False) for seed in range(1000)]
    assert found.count(FASTER) <= 21  # the sign test's rate, and what must win in each process


def test_what_gains_wins_again_in_two_processes() -> None:
    assert decided([[0.9] * 4], named=False) is None
    assert decided([[0.9] * 4] * 2, named=False) == FASTER
    assert decided([[1.1] * 4], named=False) == ""
    assert decided([[0.9] * 4, [1.0] * 4], named=False) == ""
    found = [settled_by(0.05, 0.02, seed, named=False) for seed in range(100)]
    assert found.count(FASTER) >= 95


def test_named_policies_are_asked_until_they_are_told_apart_or_surely_close() -> None:
    assert decided([[1.0, 1.01, 0.99, 1.0]] * 2, named=True) == ""
    assert decided([[0.97, 1.05, 0.96, 1.02]] * 5, named=True) is None
    assert decided([[0.97, 1.05, 0.96, 1.02]] * 6, named=True) == ""
    assert decided([[0.7] * 4, [1.05] * 4] * 2, named=True) is None
    assert decided([[0.7] * 4, [1.05] * 4] * 3, named=True) == ""
    assert decided([[1.3] * 4] * 2, named=True) == SLOWER


def test_of_named_policies_only_those_go_on_that_are_too_close_to_tell() -> None:
    again = Again("mixed", "float32", {"autocast": 1.01, "float32": 1.5})
    assert again.left() == ["float32", "mixed", "autocast"]
    scattered = {"mixed": [1.0, 1.0, 1.0, 1.0], "autocast": [0.94, 1.0, 1.0, 1.05]}
    again.processes = [scattered | {"float32": [1.5] * 4}] * 2
    assert again.left() == ["mixed", "autocast"]
    again.processes.append(scattered)
    assert again.ratios("float32", "mixed") == [[1 / 1.5] * 4] * 2
    assert again.fastest() == "mixed"
    again.processes += [scattered | {"autocast": [0.94] * 4}] * 3
    assert again.left() == []
    assert again.fastest() == "autocast"


def test_the_race_counts_as_one_process_more() -> None:
    again = Again("mixed", "float32", {"float32": 1.03})
    again.processes = [{"mixed": [1.0] * 4, "float32": [0.99] * 4}] * 2
    assert again.fastest() == "mixed"
    again.processes *= 2
    assert again.fastest() == "float32"
