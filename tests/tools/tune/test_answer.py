"""From the entries of a search to its answer: cut off anywhere, in words, as a file, as a page."""

from __future__ import annotations

import json
import re

import pytest

import mpcore as mp
from mpcore.tools.tune.evidence import gather
from mpcore.tools.tune.log import Log, read_entries
from mpcore.tools.tune.page import page
from mpcore.tools.tune.task import Task
from mpcore.tools.tune.toml import HEAD, document
from mpcore.tools.tune.words import checked, lines

WINNER, NAMED = "autocast_bfloat16; full op=attention", "mixed_bfloat16"
ABOUT = {
    "kind": "about", "backend": "torch", "experiment": "net <x>", "device": "cpu", "batch": 8,
    "versions": {"torch": "2.13.0"}, "threads": 1, "cores": 2, "load": 5.0,
}  # fmt: skip


def duel(champion: str, challenger: str, ratio: float, decision: str, stage: str) -> dict:
    names = {"champion": champion, "challenger": challenger, "stage": stage, "pairs": 8}
    spread = {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    return {"kind": "duel", **names, **spread, "decision": decision}


def won(policy: str, stage: str) -> dict:
    return {"kind": "winner", "policy": policy, "stage": stage}


def screen(policy: str, rho: object) -> dict:
    return {"kind": "screen", "policy": policy, "rho": rho, "passed": rho != "inf"}


ENTRIES = [
    ABOUT,
    {"kind": "named", "policies": ["float32", NAMED], "refused": {"x": "not here"}},
    screen(NAMED, 0.006),
    screen("mixed_float16", "inf"),
    {"kind": "culprits", "dtype": "bfloat16", "units": ["a.b"], "evaluations": 20, "whole": True},
    {"kind": "time", "policy": NAMED, "ratio": 0.8},
    duel(NAMED, "float32", 1.25, "slower", "named"),
    won(NAMED, "named"),
    {"kind": "promise", "policy": WINNER, "rule": "full op=attention", "why": "slow", "ratio": 0.5},
    screen(WINNER, 0.005),
    duel(NAMED, WINNER, 0.7, "faster", "challenge"),
    won(WINNER, "champion"),
    duel(NAMED, WINNER, 0.72, "faster", "confirm"),
    duel("float32", WINNER, 0.58, "faster", "confirm"),
    won(WINNER, "measured"),
    {
        "kind": "proof", "policy": WINNER, "passed": True, "loss": 1.5, "in_float32": 1.5,
        "float32": [1.49, 1.51, 1.5], "steps": 40, "held_out": True, "band": 0.02,
        "orders": 1, "evaluate_in_float32": False, "trained": True,
    },
    won(WINNER, "proven"),
    {"kind": "cost", "seconds": 50.0, "steps": 300, "reused": 0},
]  # fmt: skip


@pytest.mark.parametrize("count", range(1, len(ENTRIES) + 1))
def test_a_search_that_was_cut_off_has_an_answer_or_none(count: int) -> None:
    found = gather(ENTRIES[:count])
    assert bool(found.policy) == (count >= 8)
    json.dumps(found.to_dict(), allow_nan=False)
    if found.policy:
        assert len(lines(found)) == 6
        assert mp.Policy.from_toml(document(found)) == mp.Policy.parse(found.policy)


def test_a_page_of_a_search_that_was_cut_off() -> None:
    drawn = page("net", {"torch": gather(ENTRIES[:8])})
    assert "<svg" in drawn
    assert "fill: #ffffff" not in drawn  # the ink is light on a dark page


def test_the_six_lines() -> None:
    what, speed, full, proof, cost, holds = lines(gather(ENTRIES))
    assert what.endswith(WINNER)
    assert "0.58 of float32's time" in speed
    assert "0.72 of mixed_bfloat16's" in speed  # of fresh models, not of the duel that it won
    assert "slow" in full
    assert "a.b" in full
    assert "40 steps: held-out loss 1.5 (its weights in float32 1.5), float32 1.49" in proof
    assert "up to 1.51 counts as well" in proof
    assert "300 timed steps" in cost
    assert "load 5.0 on 2 cores" in holds
    assert "for frameworks without op rules: mixed_bfloat16 (0.80)" in holds


def test_a_loss_that_was_not_held_out_is_not_evaluated_again() -> None:
    proof = dict(ENTRIES[15], held_out=False)
    told = lines(gather([*ENTRIES[:15], proof, *ENTRIES[16:]]))[3]
    assert "loss of the last steps 1.5, float32 1.49" in told


def test_what_was_not_proven_says_so() -> None:
    assert "not proven by training (--fast)" in lines(gather(ENTRIES[:15]))[3]
    why = {"kind": "unproven", "why": "the loss does not fall"}
    assert (
        "not proven by training: the loss does not fall" in lines(gather([*ENTRIES[:15], why]))[3]
    )
    lost = dict(ENTRIES[15], passed=False)
    told = lines(gather([*ENTRIES[:15], lost, won("float32", "proven")]))
    assert told[0].endswith("float32")
    assert f"{WINNER} did not train as well" in told[3]


def test_points_are_told_apart_by_how_they_are_known() -> None:
    points = {p.policy: p for p in gather(ENTRIES).points()}
    assert points[WINNER].level == points["float32"].level == "proven"
    assert points[NAMED].level == "measured"
    assert points[NAMED].time == pytest.approx(1 / 1.25)
    assert points["mixed_float16"].level == "screened"
    assert points["mixed_float16"].rho is None
    cut = {p.policy: p for p in gather(ENTRIES[:9]).points()}
    assert (cut[WINNER].level, cut[WINNER].time) == ("predicted", 0.5)


def test_simulated_speed_is_not_known() -> None:
    found = gather([ABOUT, {"kind": "speed", "known": False}, won(NAMED, "screened")])
    assert "speed not known" in lines(found)[1]


def test_a_check_says_faster_or_slower() -> None:
    entries = [ABOUT, screen(WINNER, 0.005), duel("float32", WINNER, 1.04, "slower", "confirm")]
    told = "\n".join(
        checked(gather([*entries, {"kind": "checked", "policy": WINNER, "passed": True}]))
    )
    assert "1.04 of float32's time" in told
    assert "slower here: tune again" in told


def test_the_page_is_whole_and_escaped() -> None:
    text = page("net <x>", {"torch": gather(ENTRIES)})
    assert text.startswith("<!doctype html>")
    assert "<x>" not in text
    assert not re.search(r"(src|href)=\"http", text)
    assert text.count("<svg") == 1
    assert "filled" in text.lower()


def test_the_file_is_known_by_its_head_and_loads(tmp_path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text(document(gather(ENTRIES)), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    assert max(map(len, text.splitlines())) <= 300
    assert mp.Policy.load(path) == mp.Policy.parse(WINNER)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "must end in .toml or .json"),
        ("none.toml", None, "cannot be read"),
        ("bad.toml", "compute = 3", "compute"),
        ("bad.json", "{", "JSON"),
    ],
)
def test_a_file_without_a_policy_is_refused(tmp_path, name: str, text: str | None, message) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(mp.PolicyError, match=message):
        mp.Policy.load(tmp_path / name)


def test_what_is_known_is_not_made_again(tmp_path) -> None:
    told: list[dict] = []
    log = Log(
        lambda **event: told.append(event["found"]), [{"kind": "screen", "policy": "a", "rho": 1}]
    )
    assert log.once("screen", {"policy": "a"}, pytest.fail)["rho"] == 1
    made = log.once("screen", {"policy": "b"}, lambda: {"rho": float("inf")})
    assert made["rho"] == "inf"  # strict JSON
    assert log.once("screen", {"policy": "b"}, pytest.fail) is made
    assert (len(told), log.reused) == (2, 1)
    path = tmp_path / "log.jsonl"
    own, other = ({"key": k, **e} for k, e in (("k", told[0]), ("o", told[1])))
    path.write_text(f'{json.dumps(own)}\n{json.dumps(other)}\n{{"key": "k", ', encoding="utf-8")
    assert read_entries(path, "k") == [told[0]]
    assert read_entries(tmp_path / "none", "k") == []


def test_the_key_hangs_on_what_a_measurement_hangs_on() -> None:
    one, about = Task("torch"), {"batch": 8}
    assert one.key(about) == Task("torch", budget=9.0, fast=True).key(about)
    assert one.key(about) != one.key({"batch": 16})
    assert one.key(about) != Task("torch", steps=3).key(about)
