"""How often tune's rules decide wrongly: thousands of searches of synthetic clocks.

    python tests/benchmarks/tune_errors.py [SEARCHES]

Each search is a race of four named policies, three challengers, and the confirmation, by the same
functions as in ``mpcore tune``; steps are noise around a truth: of idle cores, of busy ones, with
stalls, with a machine that drifts, and with policies that are fast in one process and slow in
another. results/tune_errors.json: the share of searches whose answer is a rule that gains nothing,
whose answer is more than 2 % slower than the best named policy, and that find what gains.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import fmean, median

from results_file import keep

from mpcore.tools.profiling.duel import FASTER, duel
from mpcore.tools.tune.again import ROUNDS, STEPS_OF_ONE, Again, near
from mpcore.tools.tune.challengers import _CONFIRMED, _DUEL, _HIDDEN, _LONG
from mpcore.tools.tune.contest import STEPS
from mpcore.tools.tune.race import NOISY, challenge, race, rounds

NAMED = {"mixed": 1.0, "autocast": 1.0, "portable": 1.03, "float32": 1.4}
FAR = {"mixed": 1.0, "autocast": 1.05, "portable": 1.1, "float32": 0.97}
NOISE = {"idle": 0.02, "shared": 0.05, "busy": 0.1, "very busy": 0.2}
PROMISED = 0.02  # by kernels, beside what a rule gains


class World:
    """Clocks of one process of a machine.

    Args:
        times: seconds of a step, by policy.
        noise: standard deviation of a step's logarithm; one step in fifty takes three of it more.
        drift: of all policies together, from step to step.
        modes: share by which float32 is slower in every other process.
    """

    def __init__(
        self, times: dict[str, float], noise: float, rng: random.Random, drift: float = 0.0,
        modes: float = 0.0,
    ) -> None:  # fmt: skip
        self._rng, self._noise, self._drift, self._level = rng, noise, drift, 0.0
        slow = 1 + modes * (rng.random() < 0.5)
        self.times = {name: t * (slow if name == "float32" else 1) for name, t in times.items()}

    def step(self, name: str) -> Callable[[], float]:
        def take() -> float:
            rng = self._rng
            self._level += self._drift * rng.gauss(0, 1)
            stall = 3 * self._noise if rng.random() < 0.02 else 0.0
            return self.times[name] * pow(2.718281828, rng.gauss(self._level, self._noise) + stall)

        return take


def searched(named: dict[str, float], gains: list[float], make: Callable[[dict], World]) -> dict:
    """Return who is the answer of one search, and its steps."""
    times = named | {f"rule {number}": 0.0 for number in range(len(gains))}
    here = make(times)
    found = race({name: here.step(name) for name in named}, seconds=60.0)
    named_best = champion = found.best
    steps = found.steps + 24  # looks and warm-ups
    for number, gain in enumerate(gains):
        if steps + _DUEL + 3 * _CONFIRMED > STEPS:
            break
        if found.noise > NOISY and max(gain, 0.0) + PROMISED < _HIDDEN:
            continue
        here.times[f"rule {number}"] = here.times[named_best] * (1 - gain)
        one = duel(
            here.step(champion),
            here.step(f"rule {number}"),
            seconds=60.0,
            decide=partial(
                challenge, briefly=found.noise > NOISY or steps + _LONG + 3 * _CONFIRMED > STEPS
            ),
        )
        steps += one.steps + 3
        if one.decision == FASTER:
            champion = f"rule {number}"
            break
    own = found.seconds[named_best]
    over = {
        name: median(b / a for a, b in zip(own, seconds, strict=False))
        for name, seconds in found.seconds.items()
    }  # fmt: skip
    others = sorted((name for name in over if name != named_best), key=lambda name: over[name])
    rival = "float32" if named_best != "float32" else others[0]
    is_named = champion == named_best
    before = near(named_best, rival, over) if is_named else None
    again = Again(champion, rival if is_named else named_best, before)
    while left := again.left():
        if len(again.processes) > 1 and steps + STEPS_OF_ONE * len(left) > STEPS:
            break
        world = make(times)
        for number, gain in enumerate(gains):
            world.times[f"rule {number}"] = world.times[named_best] * (1 - gain)
        taken, more = rounds({n: world.step(n) for n in left}, ROUNDS, len(again.processes))
        steps += more + 3 * len(left)
        again.processes.append(taken)
    if is_named:
        return {"answer": again.fastest(), "steps": steps}
    won = again.decided(named_best) == FASTER
    return {"answer": champion if won else named_best, "steps": steps}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    found = {}
    for name, noise in NOISE.items():
        for kind, options in (("", {}), (" and drifts", {"drift": 0.005}),
                              (", float32 of two minds", {"modes": 0.35})):  # fmt: skip
            for named in (NAMED, FAR):
                # of what differs from process to process the mean counts
                truth = named | {"float32": named["float32"] * sqrt(1 + options.get("modes", 0.0))}
                best = min(truth.values())
                rng = random.Random(0)

                def make(times: dict, noise=noise, options=options, rng=rng) -> World:
                    return World(times, noise, rng, **options)

                none = [searched(named, [0.0, 0.0, -0.03], make) for _ in range(count)]
                some = [searched(named, [0.0, 0.25, 0.0], make) for _ in range(count // 4)]
                small = [searched(named, [0.04, 0.0, 0.0], make) for _ in range(count // 4)]
                slower = [truth[one["answer"]] / best for one in none if one["answer"] in named]
                found[f"{name}{kind}; {'close' if named is NAMED else 'apart'}"] = {
                    "noise_of_a_step": noise,
                    "searches": count,
                    "a_rule_that_gains_nothing": share(none, "rule"),
                    "named_more_than_2_percent_slower": round(
                        sum(s > 1.02 for s in slower) / count, 4
                    ),
                    "finds_25_percent": share(some, "rule 1"),
                    "finds_4_percent": share(small, "rule 0"),
                    "steps": [
                        round(fmean(s["steps"] for s in none)),
                        max(s["steps"] for s in none),
                    ],
                }
                print(list(found)[-1], found[list(found)[-1]], flush=True)
    keep("tune_errors", searches=count, found=found)


def share(searches: list[dict], answer: str) -> float:
    return round(sum(one["answer"].startswith(answer) for one in searches) / len(searches), 4)


if __name__ == "__main__":
    main()
