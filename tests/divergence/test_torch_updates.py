"""What an optimizer does otherwise behind its first step is named, in small and large models."""

from __future__ import annotations

import novel
import novel_torch
import porting
import pytest
import torch

from mpcore.tools.divergence import find


def verdict(name, *constants):
    sides = []
    for more in constants:
        own = porting.port("torch", name)
        sgd = torch.optim.SGD(own.model.parameters(), 0.05, 0.9, **more)
        sides.append(porting.evidence(own, sgd))
    return find(*sides)


@pytest.mark.parametrize("name", ["volume", "rotary", "mlp", "causal"])
@pytest.mark.parametrize("amount", [0.1, 0.5])
def test_dampening_is_no_schedule(name, amount):
    found = verdict(name, {}, {"dampening": amount})
    assert found.first.layer == "(optimizer)", found.root_causes
    (cause,) = found.root_causes
    assert cause.kind == "optimizer constants", cause
    assert cause.fix == f"give both the same dampening: 0 or {amount:g}"


def test_dampening_of_the_reference():
    (cause,) = verdict("mlp", {"dampening": 0.3}, {}).root_causes
    assert "the reference takes in 0.7" in cause.evidence[0]


@pytest.mark.parametrize("name", ["gradients centred", "rate by norms"])
@pytest.mark.parametrize("model", novel.NAMES)
def test_gradients_that_are_changed_before_the_step(model, name):
    reference, own = (porting.port("torch", model) for _ in range(2))
    first = porting.evidence(reference, novel_torch.optimizer(reference))
    with novel.planting(name):
        found = find(first, porting.evidence(own, novel_torch.optimizer(own)))
    assert found.first.layer == "(optimizer)", found.root_causes
    assert found.root_causes[0].kind == "optimizer constants", found.root_causes
