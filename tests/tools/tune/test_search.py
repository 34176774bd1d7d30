"""Which policy a search decides for, told every measurement beforehand: nothing is timed here."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpcore as mp
from mpcore.tools.experiment.experiment import Experiment
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
    monkeypatch.setattr("mpcore.tools.tune.search.try_moves", lambda bench, policy: None)


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


def world(times: dict[str, float], *, luck: str = "", trains: bool = True) -> list[dict]:
    """Return every measurement of a world in which policies take so long.

    Args:
        times: by policy, over float32's.
        luck: a policy that wins its first duel whatever it takes.
        trains: whether 16 bits train as well.
    """
    found: list[dict] = []
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
        for stage in ("named", "challenge", "confirm"):
            lucky = other == luck and stage == "challenge"
            found.append(duel(stage, one, other, 0.5 if lucky else times[other] / times[one]))
    return found


class Other:
    """Another process, in which the winner takes so long over its rival."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def duel(self, bench: object, champion: str, challenger: str) -> dict:
        return {"why": "", **duel("other", champion, challenger, self._ratio)}


def answer(entries: list[dict], afresh: Any = None, **more: object):
    told: list[dict] = []
    task = Task("torch", budget=1e4, **more)
    search(net(), task, lambda **event: told.append(event), lambda _: entries, afresh)
    found = gather([event["found"] for event in told if "found" in event])
    assert found.last("cost")["steps"] == 0, "a step was timed"
    return found


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
    found = answer(world(dict(zip([*NAMED, *RULES], times, strict=True))))
    assert (found.policy, found.level) == (wanted, "proven")


@pytest.mark.parametrize(("times", "met"), [([1.0, 0.8, 0.9, 0.9], 0), ([1.0, 1.2, 1.3, 1.4], 2)])
def test_float32_fights_among_the_named_only_where_it_looks_fastest(times: Any, met: int) -> None:
    found = answer(world(dict(zip(NAMED, times, strict=True))), fast=True)
    duels = [e for e in found.of("duel") if e["stage"] == "named"]
    assert [e["champion"] for e in duels].count("float32") >= met
    assert all("float32" not in (e["champion"], e["challenger"]) for e in duels) == (not met)
    confirmed = [e["champion"] for e in found.of("duel") if e["stage"] == "confirm"]
    assert confirmed == ([] if met else ["float32"])


def test_of_a_tie_with_float32_the_smaller_median_is_the_answer() -> None:
    entries = world(dict(zip(NAMED, [1.0, 0.99, 1.1, 1.2], strict=True)))
    for entry in entries:
        if entry.get("stage") == "confirm" and entry["challenger"] == "mixed_bfloat16":
            entry["ratio"] = 1.015 if entry["champion"] == "float32" else entry["ratio"]
    assert answer(entries, fast=True).policy == "float32"


def test_who_won_by_luck_does_not_win_again() -> None:
    times = dict(zip([*NAMED, *RULES], [1.0, 0.8, 0.81, 0.85, 0.79, 0.9], strict=True))
    found = answer(world(times, luck=RULES[1]), fast=True)
    assert (found.policy, found.level) == ("mixed_bfloat16", "measured")
    assert found.of("refused")


@pytest.mark.parametrize(
    ("times", "elsewhere", "wanted"),
    [
        ([1.0, 1.01, 1.1, 1.2, 1.3, 1.3], 1.4, "mixed_bfloat16"),  # float32 won here, by 1 %
        ([1.0, 1.01, 1.1, 1.2, 1.3, 1.3], 1.0, "float32"),
        ([1.0, 1.01, 1.1, 1.2, 1.3, 1.3], 0.7, "float32"),
        ([1.0, 0.8, 0.81, 0.85, 0.6, 0.9], 1.3, RULES[0]),  # 0.75 here: over both it is faster
        ([1.0, 0.8, 0.81, 0.85, 0.6, 0.9], 1.4, "mixed_bfloat16"),
    ],
)
def test_another_process_has_a_say(times: list[float], elsewhere: float, wanted: str) -> None:
    entries = world(dict(zip([*NAMED, *RULES], times, strict=True)))
    found = answer(entries, Other(elsewhere), fast=True)
    assert found.policy == wanted
    assert len(found.of("again")) == 1
    assert f"{elsewhere:.2f} of " in lines(found)[1].partition("in another process ")[2]


def test_what_does_not_train_is_not_the_answer() -> None:
    times = dict(zip([*NAMED, *RULES], [1.0, 0.8, 0.81, 0.85, 0.6, 0.9], strict=True))
    found = answer(world(times, trains=False))
    assert (found.policy, found.level) == ("float32", "proven")
    assert not any(proof["passed"] for proof in found.of("proof"))
