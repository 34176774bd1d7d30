"""Planted faults are found where they are, and named; clean pairs hold none."""

from __future__ import annotations

from collections import Counter

import clean
import faults  # noqa: F401  # registers them
import more_faults  # noqa: F401
import planting
import pytest
import torch
import zoo

FAULTS = 110  # by night; by day the first 44, and campaigns have judged 215
PAIRS = 50


@pytest.fixture(autouse=True)
def one_thread():
    """Run these small models on one thread: more only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _told(one: planting.Planted) -> tuple[bool, bool, str, str]:
    """Return (place right, kind right, expected kind, a line about it)."""
    verdict, expected = one.verdict()
    layers, kinds = (
        (word,) if isinstance(word, str) else word for word in (expected.layer, expected.kind)
    )
    cause = next(iter(verdict.root_causes), None)
    found = cause.kind if cause else "nothing"
    where = verdict.first.layer if verdict.first else "nowhere"
    line = f"{one.number} {one.fault} in {one.name}, {one.policy}: {layers} {kinds}, "
    line += f"found {where!r} {found}"
    return where in layers, found in kinds, kinds[0], line


@pytest.mark.day
def test_planted_faults_are_located_and_named(pytestconfig: pytest.Config) -> None:
    count = FAULTS if pytestconfig.getoption("--nightly") else 44
    known = [
        name
        for name, plant in planting.FAULTS.items()
        if plant.__module__ in ("faults", "more_faults")  # whoever else is imported beside
    ]
    told = [(one.fault, *_told(one)) for one in planting.planted(range(count), zoo.NAMES, known)]
    wrong = [line for _, place, kind, _, line in told if not (place and kind)]
    confusion = Counter((name, line.rpartition(" found ")[2]) for name, *_, line in told)
    table = "\n".join(
        f"{count:3} {name} -> {found}" for (name, found), count in sorted(confusion.items())
    )
    located = sum(place for _, place, _, _, _ in told)
    named = sum(kind for _, _, kind, _, _ in told)
    report = f"located {located}, named {named} of {count}\n" + "\n".join(wrong) + "\n" + table
    assert located >= 0.95 * count, report
    assert named >= 0.85 * count, report


@pytest.mark.parametrize("change", clean.CHANGES)
def test_clean_pairs_hold_no_fault(change: str) -> None:
    alarms = []
    for pair in clean.pairs(range(PAIRS)):
        if pair[1] == change:
            verdict = clean.judged(*pair)
            if not verdict.agrees or verdict.root_causes:
                alarms.append((pair, verdict.verdict, verdict.root_causes))
    assert not alarms, alarms
