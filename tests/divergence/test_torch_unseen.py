"""Faults of the update, of losses with several terms and of newer models are found and named."""

from __future__ import annotations

import campaign
import newer
import planting
import pytest
import torch
import unseen

NEW = [n for n, plant in planting.FAULTS.items() if plant.__module__ == "unseen_faults"]


@pytest.fixture(autouse=True)
def one_thread():
    """Run these small models on one thread: more only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("number", range(len(NEW)), ids=NEW)
def test_one_of_each_new_fault(number: int) -> None:
    """The models that rules were tuned on; those held out are scored by night."""
    found = planting.planted(range(number, number + 1), unseen.TUNED, NEW)
    for one in found:
        told = campaign.judged(one)
        assert told["located"], told
        assert told["named"], told
    if not found:
        pytest.skip("no model of these has it")


NEWER = [n for n, plant in planting.FAULTS.items() if plant.__module__ == "newer_faults"]


@pytest.mark.parametrize("number", range(len(NEWER)), ids=NEWER)
def test_one_of_each_newer_fault(number: int) -> None:
    """In newer models, of data, losses, wiring and updates."""
    for one in planting.planted(range(number, number + 1), newer.NAMES, NEWER):
        told = campaign.judged(one)
        assert told["located"], told
        assert told["named"], told


@pytest.mark.nightly
def test_two_hundred_faults() -> None:
    told = [campaign.judged(one) for one in planting.planted(range(200), campaign.MODELS["all"])]
    sums = {name: sum(bool(t[name]) for t in told) for name in ("located", "named", "wrong")}
    missed = [t for t in told if not (t["located"] and t["named"])]
    assert sums["located"] >= 0.95 * len(told), missed
    assert sums["named"] >= 0.85 * len(told), missed
    assert sums["wrong"] <= 0.03 * len(told), missed
