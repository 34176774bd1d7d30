"""Which policy a search decides for, told every measurement beforehand: nothing is timed here."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpcore as mp
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.tune.contest import Contest
from mpcore.tools.tune.evidence import gather
from mpcore.tools.tune.search import search
from mpcore.tools.tune.task import Task
from mpcore.tools.tune.words import lines

pytestmark = pytest.mark.slow

NAMED = ["float32", "mixed_bfloat16", "autocast_bfloat16", "portable_bfloat16"]
RULES = ["mixed_bfloat16; full path=2", "autocast_bfloat16; lower op=tanh"]


@pytest.fixture(autouse=True)
def nothing_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what is timed after the answer: ``test_outer`` runs it."""
    monkeypatch.setattr("mpcore.tools.tune.search.try_moves", lambda *_: None)


def build():
    from torch import nn

    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def net() -> Experiment:
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("f4")
    spec = mp.OptimizerSpec()
    data = mp.Data(x, x, x[:0], x[:0])
    return Experiment("net", Path("(none)"), lambda: data, "mse", spec, {"torch": build})


def duel(stage: str, champion: str, challenger: str, ratio: float) -> dict:
    decision = "faster" if ratio < 0.98 else "slower" if ratio > 1.02 else ""
    names = {"stage": stage, "champion": champion, "challenger": challenger, "pairs": 8}
    spread = {"ratio": ratio, "low": ratio, "high": ratio}
    return {"kind": "duel", **names, **spread, "decision": decision}


def race(times: dict[str, float]) -> dict:
    names = [policy for policy in NAMED if policy in times]
    best = min(names, key=lambda policy: times[policy])
    duels = [duel("named", best, one, times[one] / times[best]) for one in names if one != best]
    order = [*names[1:], "float32"]
    seconds = {policy: times[policy] for policy in names}
    return {"kind": "race", "policies": order, "best": best, "seconds": seconds, "duels": duels}


def world(times: dict[str, float], *, luck: str = "", trains: bool = True) -> list[dict]:
    """Return every measurement of a world in which policies take so long, but other processes'.

    Args:
        times: by policy, over float32's.
        luck: a policy that wins its first duel whatever it takes.
        trains: whether 16 bits train as well.
    """
    found: list[dict] = [race(times)]
    for policy in times:
        promises = [
            [times[policy] - 0.5, rule, rule, "it is slow"] for rule in times if ";" in rule
        ]
        own = promises if policy != "float32" else []
        found.append({"kind": "looked", "policy": policy, "seconds": times[policy], "wall": 0.0})
        found[-1]["promises"] = own
        found.append({"kind": "screen", "policy": policy, "rho": 0.01, "passed": True})
        for order in range(3):
            bad = 5.0 if policy != "float32" and not trains else 0.0
            losses = {"loss": 1.0 + 0.1 * order + bad, "in_float32": 1.0 + bad, "first": 2.0}
            losses |= {"evaluates": True, "last": 1.0, "falls": True}
            more = {"skipped": 0, "rule": "", "held_out": True}
            found.append({"kind": "trained", "policy": policy, "order": order, **losses, **more})
    for one, other in permutations(times, 2):
        ratio = 0.5 if other == luck else times[other] / times[one]
        found.append(duel("challenge", one, other, ratio))
    return found


class Processes:
    """Other processes, in which policies take so long."""

    def __init__(self, *times: dict[str, float]) -> None:
        self._times, self.asked = times, list[list[str]]()

    def rounds(self, bench: object, policies: list[str], count: int) -> dict:
        times = self._times[len(self.asked) % len(self._times)]
        self.asked.append(list(policies))
        seconds = {policy: [times[policy]] * count for policy in policies}
        return {"why": "", "steps": 0, "seconds": seconds}


def answer(entries: list[dict], processes: Processes, **more: object):
    told: list[dict] = []
    task = Task("torch", budget=1e4, **more)
    search(net(), task, lambda **event: told.append(event), lambda _: entries, processes)
    found = gather([event["found"] for event in told if "found" in event])
    assert found.last("cost")["steps"] == 0, "a step was timed"
    return found


def by_policy(*times: float) -> dict[str, float]:
    return dict(zip([*NAMED, *RULES], times, strict=False))


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([1.0, 0.8, 0.8, 0.85, 0.6, 0.9], RULES[0]),
        ([1.0, 0.8, 0.7, 0.85, 0.9, 0.6], RULES[1]),
        ([1.0, 0.8, 0.7, 0.85, 0.75, 0.8], "autocast_bfloat16"),
        ([1.0, 1.2, 1.3, 1.4, 1.1, 1.3], "float32"),
        ([1.0, 1.2, 1.3, 1.4, 0.7, 1.3], RULES[0]),
        # autocast is 1 % faster than mixed, which no duel decides
        ([1.0, 0.8, 0.792, 0.85, 0.9, 0.9], "autocast_bfloat16"),
    ],
)
def test_the_fastest_is_the_answer_and_proven(times: list[float], wanted: str) -> None:
    own = by_policy(*times)
    found = answer(world(own), Processes(own))
    assert (found.policy, found.level) == (wanted, "proven")


@pytest.mark.parametrize(
    ("times", "rival"),
    [([1.0, 0.8, 0.9, 0.9], "float32"), ([1.0, 1.3, 1.2, 1.4], "autocast_bfloat16")],
)
def test_a_named_answer_meets_float32_or_the_next_one(times: Any, rival: str) -> None:
    own, seen = by_policy(*times), Processes(by_policy(*times))
    found = answer(world(own), seen, fast=True)
    (confirmed,) = (e for e in found.of("duel") if e["stage"] == "confirm")
    assert (confirmed["champion"], confirmed["challenger"]) == (rival, found.policy)
    assert (confirmed["pairs"], confirmed["processes"], len(seen.asked)) == (8, 2, 2)
    assert "8 pairs in 2 processes" in lines(found)[1]


def test_who_won_by_luck_does_not_win_again() -> None:
    own = by_policy(1.0, 0.8, 0.81, 0.85, 0.79, 0.9)
    found = answer(world(own, luck=RULES[1]), Processes(own), fast=True)
    assert (found.policy, found.level) == ("mixed_bfloat16", "measured")
    assert found.of("refused")


@pytest.mark.parametrize(
    ("times", "elsewhere", "wanted", "asked"),
    [
        # float32 won here, by 1 %
        ([1.0, 1.01, 1.1, 1.2], [[1.0, 0.7]], "mixed_bfloat16", 2),
        ([1.0, 1.01, 1.1, 1.2], [[1.0, 1.0]], "float32", 2),
        ([1.0, 1.01, 1.1, 1.2], [[1.0, 1.3]], "float32", 2),
        # of processes that disagree more are asked
        ([1.0, 1.01, 1.1, 1.2], [[1.0, 1.05], [1.0, 0.7], [1.0, 0.7]], "mixed_bfloat16", 6),
        ([1.0, 0.8, 0.9, 0.9], [[1.0, 1.05], [1.0, 0.7], [1.0, 0.7]], "mixed_bfloat16", 6),
        ([1.0, 0.8, 0.9, 0.9], [[1.0, 1.3], [1.0, 0.95], [1.0, 1.3]], "float32", 6),
    ],
)
def test_other_processes_decide_between_named_policies(
    times: list[float], elsewhere: list[list[float]], wanted: str, asked: int
) -> None:
    seen = Processes(*(by_policy(*one, 1.1, 1.2) for one in elsewhere))
    found = answer(world(by_policy(*times)), seen, fast=True)
    assert found.policy == wanted
    assert len(seen.asked) == asked


@pytest.mark.parametrize("other", [1.3, 0.999])
def test_a_rule_must_win_in_each_process(other: float) -> None:
    own = by_policy(1.0, 0.8, 0.81, 0.85, 0.6, 0.9)
    found = answer(world(own), Processes(own, own | {RULES[0]: 0.8 * other}), fast=True)
    assert found.policy == "mixed_bfloat16"
    assert found.of("refused")
    (lost,) = answer(world(own), Processes(own | {RULES[0]: 1.0}), fast=True).of("again")
    assert lost["process"] == 0


def test_what_does_not_train_is_not_the_answer() -> None:
    own = by_policy(1.0, 0.8, 0.81, 0.85, 0.6, 0.9)
    found = answer(world(own, trains=False), Processes(own))
    assert (found.policy, found.level) == ("float32", "proven")
    assert not any(proof["passed"] for proof in found.of("proof"))


@pytest.mark.parametrize(
    ("raced", "again", "wanted"),
    [
        (0.81, 0.75, "autocast_bfloat16"),  # of all together the nearest is faster
        (0.81, 0.799, "mixed_bfloat16"),
        (0.85, 0.75, "mixed_bfloat16"),  # it was not near: it is not asked again
    ],
)
def test_a_named_policy_that_was_near_meets_the_winner_again(raced, again, wanted) -> None:
    own = by_policy(1.0, 0.8, raced, 0.9)
    processes = Processes(own | {"autocast_bfloat16": again})
    assert answer(world(own), processes, fast=True).policy == wanted
    assert ("autocast_bfloat16" in processes.asked[0]) == (raced < 0.84)


def test_no_more_is_tried_than_the_steps_allow() -> None:
    own = by_policy(1.0, 0.8, 0.81, 0.85, 0.6, 0.7)
    entries = world(own)
    entries[0]["steps"] = 133
    assert answer(entries, Processes(own), fast=True).policy == RULES[0]
    entries[0]["steps"] = 150
    found = answer(entries, Processes(own), fast=True)
    assert found.policy == "mixed_bfloat16"
    assert found.of("promise")


@pytest.mark.parametrize(("noise", "briefly"), [(0.1, {True}), (0.01, {False})])
def test_where_rounds_scatter_four_pairs_must_do(noise, briefly, monkeypatch) -> None:
    asked, fight = set(), Contest.fight

    def heard(self, stage, champion, challenger, **more):
        asked.update({more["briefly"]} if stage == "challenge" else ())
        return fight(self, stage, champion, challenger, **more)

    monkeypatch.setattr(Contest, "fight", heard)
    own = by_policy(1.0, 0.8, 0.81, 0.85, 0.6, 0.7)
    entries = world(own)
    entries[0]["noise"] = noise
    assert answer(entries, Processes(own), fast=True).policy == RULES[0]
    assert asked == briefly


@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_where_rounds_scatter_what_promises_little_is_not_tried(noise) -> None:
    own = by_policy(1.0, 0.8, 0.81, 0.85, 0.782, 0.9)
    entries = world(own, luck=RULES[0])
    entries[0]["noise"] = noise
    for entry in entries:
        for promise in entry.get("promises", ()):
            promise[0] = 0.02 * 0.8
    found = answer(entries, Processes(own), fast=True)
    assert bool(found.of("promise")) == (noise < 0.04)


def test_a_rule_that_wins_takes_another_of_its_base_along() -> None:
    own = by_policy(1.0, 0.8, 0.81, 0.85)
    first, second = "full op=tanh", "lower op=add_sub"
    policy = "autocast_bfloat16; full op=tanh"
    both = f"{policy}; {second}"
    own |= {policy: 0.6, f"autocast_bfloat16; {second}": 0.78, both: 0.57}
    entries = world(own)
    for entry in entries:
        if entry["kind"] == "looked":
            entry["promises"] = []
        if entry["kind"] == "looked" and entry["policy"] == "autocast_bfloat16":
            entry["promises"] = [
                [0.2, policy, first, "it is slow"],
                [0.03, f"autocast_bfloat16; {second}", second, "it is cast"],
            ]
    found = answer(entries, Processes(own), fast=True)
    assert found.policy == both
    assert "full op=tanh: it is slow; lower op=add_sub: it is cast" in lines(found)[2]
