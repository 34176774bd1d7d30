"""An activation that rounding puts on the other side is proved, and hides no fault."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp
from mpcore.tools.divergence import collect, find
from mpcore.tools.inspection import Request

SIZES = {"float32": 2.0**-23, "mixed_bfloat16": 2.0**-7, "mixed_float16": 2.0**-10}
PLACE = (0, 2)


class Rounded(nn.Linear):
    """A kernel that rounds one value to a side of ``edge``; None is the value beside it."""

    edge: float | None = 0.0
    size = 0.0

    def forward(self, x):
        made = super().forward(x)
        edge = made[0, 3] if self.edge is None else self.edge
        moved = torch.zeros_like(made)
        moved[PLACE] = edge + self.size * (abs(edge) or 0.1) - made[PLACE]
        return made + moved.detach()


class Functional(nn.Module):
    """The same network, its ReLU a function."""

    def __init__(self, layers):
        super().__init__()
        self.before, self.behind, self.head = layers[0], layers[2], layers[4]

    def forward(self, x):
        return self.head(functional.relu(self.behind(functional.relu(self.before(x)))))


class Maxima(nn.Module):
    """The largest of every two values of a row."""

    def __init__(self, layers):
        super().__init__()
        self.before, self.behind = layers[0], layers[2]
        self.pool, self.head = nn.MaxPool1d(2), nn.Linear(6, 4)

    def forward(self, x):
        made = self.behind(functional.relu(self.before(x)))
        return self.head(self.pool(made[:, None])[:, 0])


def network(kind, size):
    """Return a network one of whose activations lies beside its kink by ``size``."""
    torch.manual_seed(0)
    act = nn.ReLU if kind in (Functional, Maxima) else kind
    layers = nn.Linear(6, 12), nn.ReLU(), Rounded(12, 12), act(), nn.Linear(12, 4)
    layers[2].size = size
    layers[2].edge = {Maxima: None, nn.ReLU6: 6.0}.get(kind, 0.0)
    x, y = torch.randn(48, 6), torch.randint(0, 4, (48,))
    return (kind(layers) if kind in (Functional, Maxima) else nn.Sequential(*layers)), x, y


def judged(kind, policy, plant=lambda model: None, *, rounded=True):
    sides = []
    for turn in range(2):
        model, x, y = network(kind, SIZES[policy] * (-1 if turn and rounded else 1))
        if turn:
            plant(model)
        named = mp.Policy.named(policy)
        if named.scaling.kind == "dynamic":
            named = named.with_loss_scale(mp.LossScale(init_scale=2.0**7))
        amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), named)

        def loss(x, y, model=model):
            return functional.cross_entropy(model(x), y)

        driver = mp.load_backend("torch").driver()
        everything = Request(keep=frozenset("*"))
        sides.append(collect(driver, model, amp, loss, (x, y), request=everything, moved=0))
    return find(*sides)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *((kind, p) for p in SIZES for kind in (nn.ReLU, nn.LeakyReLU, Functional, Maxima)),
        (nn.ReLU6, "float32"),  # 6 is so large here that a spacing of 16 bits is a difference
    ],
)
def test_an_activation_that_fell_to_the_other_side_is_no_difference(kind, policy) -> None:
    found = judged(kind, policy)
    assert found.agrees, (found.verdict, found.root_causes)
    assert found.root_causes == ()
    if policy == "float32":
        assert found.verdict.startswith("same: but at a kink"), found.verdict


class _Changed(torch.autograd.Function):
    """Gradients times a mask, which a ReLU at its kink would not make."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def gradients(path, make):
    def plant(model):
        layer = model.get_submodule(path)
        layer.register_forward_hook(lambda m, given, made: _Changed.apply(made, make(made)))

    return plant


def cut(count, made):
    """Return a mask that takes the gradient of a few values far from the kink away."""
    mask = torch.ones_like(made)
    large = made.flatten().argsort(descending=True)[:count]
    return mask.flatten().scatter(0, large, 0.0).view_as(mask)


def other(path, make):
    def plant(model):
        model.set_submodule(path, make())

    return plant


@pytest.mark.parametrize("rounded", [True, False], ids=["at a kink", "else"])
@pytest.mark.parametrize(
    ("plant", "places"),
    [
        (gradients("3", partial(cut, 2)), ("3", "4")),
        (gradients("2", partial(cut, 24)), ("2", "3")),
        (gradients("0", lambda made: torch.full_like(made, 0.5)), ("0", "1")),
        (gradients("2", lambda made: torch.full_like(made, 1.2)), ("2", "3")),
        (other("3", partial(nn.LeakyReLU, 0.01)), ("3",)),
        (other("3", nn.GELU), ("3",)),
    ],
    ids=["cut", "cut before", "halved before", "scaled", "leaky", "gelu"],
)
def test_a_fault_beside_a_kink_is_found(plant, places, rounded) -> None:
    found = judged(nn.ReLU, "float32", plant, rounded=rounded)
    assert not found.agrees
    assert found.first.layer in places, found.verdict


def test_a_layer_that_takes_gradients_away_at_small_values_is_no_kink() -> None:
    """The values lie on one side of zero: the same slope belongs to them."""

    def mask(made):
        small = made.flatten().abs().argsort()[:2]
        return torch.ones_like(made).flatten().scatter(0, small, 0.0).view_as(made)

    assert not judged(nn.LeakyReLU, "float32", gradients("2", mask), rounded=False).agrees
