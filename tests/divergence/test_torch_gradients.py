"""Gradients that are lost or scaled: found in 16 bits too, at the layer and at no other."""

from __future__ import annotations

import porting
import pytest
import torch

from mpcore.tools.divergence import find

POLICIES = ("float32", "mixed_bfloat16")


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def scaled(path, factor):
    """Scale the gradient that comes back to a layer; 0.0 stops it."""

    def plant(own):
        def change(module, given, made):
            return made.detach() if factor == 0.0 else _Scaled.apply(made, factor)

        own.model.get_submodule(path).register_forward_hook(change)

    return plant


def frozen(path):
    return lambda own: own.model.get_submodule(path).requires_grad_(False)


def verdict(name, policy, plant=lambda own: None):
    sides = []
    for change in (lambda own: None, plant):
        own = porting.port("torch", name)
        change(own)
        sgd = torch.optim.SGD([p for p in own.model.parameters() if p.requires_grad], 0.05, 0.9)
        sides.append(porting.evidence(own, sgd, policy))
    return find(*sides)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "plant", "layer"),
    [
        ("twins", scaled("tower.conv1", 0.5), "tower.conv1"),
        ("separable", scaled("pointwise.conv", 1.6), "pointwise.conv"),
        ("gru", scaled("embed", 0.4), "embed"),
        ("attend", scaled("mlp.gate", 0.0), "mlp.gate"),
        ("timemix", scaled("time2.key", 0.0), "time2.key"),
        ("attunet", frozen("down1.conv"), "down1.conv"),
        ("resnet", frozen("stem.conv"), "stem.conv"),
    ],
)
def test_the_layer_is_named(name, plant, layer, policy):
    found = verdict(name, policy, plant)
    assert found.first is not None, found.verdict
    assert found.first.layer in (layer, "(optimizer)"), (found.verdict, found.root_causes)
    assert found.root_causes[0].kind in ("other setting", "unknown"), found.root_causes


@pytest.mark.parametrize("name", ["twins", "squeeze", "gru", "attend"])
def test_without_a_fault_nothing_is_told(name):
    found = verdict(name, "mixed_bfloat16")
    assert found.agrees, (found.verdict, found.root_causes)


def given(change):
    """Give the model something else than the batch, in the function of the loss."""

    def plant(own):
        plain = own.loss
        own.loss = lambda *batch: plain(*change(batch))

    return plant


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        ("resnet", lambda batch: [x[:2] for x in batch], "other setting"),
        ("gru", lambda batch: [x[:3] for x in batch], "other setting"),
        ("mlp", lambda batch: (batch[0] / 2 + 1, batch[1]), "other setting"),
        ("squeeze", lambda batch: (batch[0].flip(0), batch[1]), "data order"),
    ],
)
def test_what_the_loss_makes_of_the_batch_is_told(name, change, kind, policy):
    found = verdict(name, policy, given(change))
    assert (found.first.phase, found.first.layer) == ("input", "batch[0]"), found.verdict
    assert found.root_causes[0].kind == kind, found.root_causes
    assert "the batches agree" in " ".join(found.root_causes[0].evidence)
