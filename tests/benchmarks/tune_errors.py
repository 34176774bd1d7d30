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
from mpcore.tools.tune.challengers import _DUEL, _LONG, _OF_THREE, _PROCESSES
from mpcore.tools.tune.confirm import decided
from mpcore.tools.tune.contest import STEPS
from mpcore.tools.tune.race import NOISY, challenge, race, rounds
from mpcore.tools.tune.search import CLOSE

_CONFIRMED = _PROCESSES * _OF_THREE
NAMED = {"mixed": 1.0, "autocast": 1.0, "portable": 1.03, "float32": 1.4}
FAR = {"mixed": 1.0, "autocast": 1.05, "portable": 1.1, "float32": 0.97}
NOISE = {"idle": 0.02, "busy": 0.1, "very busy": 0.2}


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
        if steps + _DUEL + _CONFIRMED > STEPS:
            break
        here.times[f"rule {number}"] = here.times[named_best] * (1 - gain)
        one = duel(
            here.step(champion),
            here.step(f"rule {number}"),
            seconds=60.0,
            decide=partial(
                challenge, briefly=found.noise > NOISY or steps + _LONG + _CONFIRMED > STEPS
            ),
        )
        steps += one.steps + 3
        if one.decision == FASTER:
            champion = f"rule {number}"
            break
    rival = named_best if champion != named_best else (
        "float32" if champion != "float32" else "mixed"
    )  # fmt: skip
    own = found.seconds[named_best]
    over = {
        name: median(b / a for a, b in zip(own, seconds, strict=False))
        for name, seconds in found.seconds.items() if name != named_best
    }  # fmt: skip
    tied = min(over, key=lambda name: over[name])
    if champion != named_best or tied == rival or over[tied] > CLOSE:
        tied = ""
    third = "float32" if champion != named_best else tied or rival
    processes: list[list[float]] = []
    between: list[float] = []
    told = None
    while told is None:
        world = make(times)
        for number, gain in enumerate(gains):
            world.times[f"rule {number}"] = world.times[named_best] * (1 - gain)
        met = dict.fromkeys((rival, champion, third))
        taken, more = rounds({n: world.step(n) for n in met}, 4, len(processes))
        steps += more + 3 * len(met)
        between += [b / a for a, b in zip(taken[champion], taken[third], strict=True)]
        processes.append([b / a for a, b in zip(taken[rival], taken[champion], strict=True)])
        told = decided(processes, named=champion == named_best)
        if told is None and (
            len(processes) == 4 or (len(processes) > 1 and steps + _OF_THREE > STEPS)
        ):
            told = ""
    if tied and over[tied] * median(between) < 1:
        return {"answer": tied, "steps": steps}
    answer = champion
    if champion != named_best:
        answer = champion if told == FASTER else named_best
    elif told != FASTER and fmean(median(one) for one in processes) > 1:
        answer = rival
    return {"answer": answer, "steps": steps}


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
