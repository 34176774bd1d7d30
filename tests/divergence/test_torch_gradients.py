"""Gradients that are lost or scaled: found in 16 bits too, at the layer and at no other."""

from __future__ import annotations

from contextlib import nullcontext

import novel
import novel_torch
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


def of_novel(name, policy, fault=None):
    """Return the verdict over one of the mistakes of ``novel``."""
    sides = []
    for planted in (None, fault):
        with novel.planting(planted) if planted else nullcontext():
            own = porting.port("torch", name)
            sides.append(porting.evidence(own, novel_torch.optimizer(own), policy))
    return find(*sides)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gradient_that_the_loss_lacks_is_no_fault_of_the_layer_that_shares_it(policy):
    found = of_novel("views", policy, "target not detached")
    assert (found.first.phase, found.first.layer) == ("backward", "(loss)"), found.verdict
    (cause,) = found.root_causes
    assert cause.kind == "other setting"
    assert "detach" in cause.fix


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", ["query and key swapped", "rotary base of 100"])
def test_a_softmax_is_not_accused_of_scores_that_a_mask_outweighs(policy, fault):
    found = of_novel("rotary", policy, fault)
    assert (found.first.phase, found.first.layer) == ("forward", "attend"), found.root_causes


@pytest.mark.parametrize("policy", POLICIES)
def test_a_softmax_behind_a_mask_is_accused_of_what_it_does(policy):
    def plant(own):
        own.model.attend.share.forward = lambda scores: (scores / 2).softmax(-1)

    assert verdict("rotary", policy, plant).first.layer == "attend.share"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loss_that_leaves_out_an_output_is_told_as_such(policy):
    """Under bfloat16 the loss itself agrees."""
    found = of_novel("views", policy, "one of two losses")
    assert found.first.layer == "(loss)", found.root_causes
    assert found.root_causes[0].layer == "(loss)"


def test_a_layer_that_detaches_what_the_loss_uses_too_is_named():
    """Its own parameters' gradients agree, and the loss has no part in it."""
    sides = []
    for detached in (False, True):
        own = porting.port("torch", "views")
        if detached:
            own.model.hidden.register_forward_pre_hook(lambda _, given: given[0].detach())
        sides.append(porting.evidence(own, novel_torch.optimizer(own)))
    found = find(*sides)
    assert (found.first.phase, found.first.layer) == ("backward", "hidden"), found.root_causes


class _Features(torch.nn.Module):
    """Hands on its features beside the logits, for a penalty."""

    def __init__(self):
        super().__init__()
        self.enter, self.head = torch.nn.Linear(20, 16), torch.nn.Linear(16, 5)

    def forward(self, x):
        features = self.enter(x).sigmoid()
        return self.head(features), features


@pytest.mark.parametrize("policy", POLICIES)
def test_a_penalty_that_is_detached_is_told_in_the_loss(policy):
    sides = []
    for detached in (False, True):
        torch.manual_seed(0)
        model = _Features()
        batch = torch.randn(8, 20), torch.arange(8) % 5

        def loss(x, y, model=model, detached=detached):
            logits, features = model(x)
            features = features.detach() if detached else features
            entropy = torch.nn.functional.cross_entropy(logits.float(), y)
            return entropy + features.float().square().mean()

        own = porting.Port("torch", "features", model, batch, loss)
        sgd = torch.optim.SGD(model.parameters(), 0.05, 0.9)
        sides.append(porting.evidence(own, sgd, policy))
    found = find(*sides)
    assert (found.first.phase, found.first.layer) == ("backward", "(loss)"), found.root_causes
    assert "detach" in found.root_causes[0].fix


@pytest.mark.parametrize("factor", [0.9, 1.3])
@pytest.mark.parametrize("name", ["twins", "separable"])
def test_a_factor_that_the_loss_alone_makes_is_told_in_the_loss(name, factor) -> None:
    """Its value agrees: what its gradient shows is no matter of the last layer."""

    def plant(own):
        told = own.loss

        def loss(*batch):
            return _Scaled.apply(told(*batch), factor)

        own.loss = loss

    found = verdict(name, "mixed_bfloat16", plant)
    assert (found.first.layer, found.first.phase) == ("(loss)", "loss"), found.verdict
