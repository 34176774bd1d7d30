"""Equal values in a max-pooling are told from a fault."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mpcore.tools.divergence.align import Pair
from mpcore.tools.divergence.distance import Distance, between
from mpcore.tools.divergence.first import First, first_backward
from mpcore.tools.divergence.hypotheses.pooling import from_pooling
from mpcore.tools.divergence.rows import Match, Table
from mpcore.tools.inspection import LayerCall, summarize

RNG = np.random.default_rng(0)
PLAIN = np.abs(RNG.normal(size=(1, 2, 4, 4, 4))).astype(np.float32) + 1
TIED = np.where(RNG.random(PLAIN.shape) < 0.5, PLAIN, 0).astype(np.float32)
TIED[:, :, :2, :2, :2] = 0  # windows without any value above zero


def kept(*arrays):
    return tuple(summarize(array, keep=True) for array in arrays)


def call(path, category, x, out, came, handed):
    return LayerCall(path, "", category, kept(x), kept(out), kept(came), kept(handed))


def pooled(x, handed):
    return call("pool", "pooling", x, x[..., ::2, ::2, ::2], np.ones((1, 2, 2, 2, 2), "f4"), handed)


def gradients(x):
    """Return a gradient for the first of the largest of a window, and for all of them."""
    windows = x.reshape(1, 2, 2, 2, 2, 2, 2, 2).transpose(0, 1, 2, 4, 6, 3, 5, 7)
    flat = windows.reshape(1, 2, 2, 2, 2, 8)
    every = flat == flat.max(-1, keepdims=True)
    first = every & (every.cumsum(-1) == 1)
    back = (0, 1, 2, 5, 3, 6, 4, 7)
    return [
        m.astype("f4").reshape(windows.shape).transpose(back).reshape(x.shape)
        for m in (first, every)
    ]


def matched(a, b):
    names = ("inputs", "outputs", "grad_outputs", "grad_inputs")
    seen = {}
    for name in names:
        found, equal = between(getattr(a, name), getattr(b, name), (1.0, 1.0))
        seen[name] = Distance(found, 1e-5, equal)
    return Match(Pair(a, b, (0, 0)), seen)


def through(x, gate):
    """Return an activation and the pooling behind it; ``gate`` is what it lets through."""
    acts = [call("act", "activation", x, x, handed, handed * gate) for handed in gradients(x)]
    pools = [pooled(x, handed) for handed in gradients(x)]
    return Table([matched(*acts), matched(*pools)], [])


def test_a_gradient_that_the_relu_before_takes_away_is_no_difference() -> None:
    table = through(TIED, (TIED > 0).astype("f4"))
    assert table.match("pool").parts("grad_inputs")
    assert first_backward(table) is None


def test_one_that_goes_on_is_a_difference_at_the_pooling() -> None:
    found = first_backward(through(TIED, np.ones_like(TIED)))
    assert (found.layer, found.phase) == ("pool", "backward")


def test_another_gradient_of_another_layer_is_not_passed_over() -> None:
    relu = (TIED > 0).astype("f4")
    table = through(TIED, relu)
    first, _ = gradients(TIED)
    wrong = call("act", "activation", TIED, TIED, first, 2 * first * relu)
    table.matches[0] = matched(table.matches[0].pair.reference, wrong)
    assert first_backward(table) is not None


@pytest.mark.parametrize(("x", "count"), [(TIED, True), (PLAIN, False)], ids=["ties", "none"])
def test_the_known_difference_needs_equal_values(x, count) -> None:
    first, every = gradients(x)
    own = every if count else np.roll(first, 1, -1)
    pair = pooled(x, first), pooled(x, own)
    sides = [
        SimpleNamespace(backend=name, inspection=SimpleNamespace(scale=1.0))
        for name in ("torch", "tensorflow")
    ]
    case = SimpleNamespace(
        reference=sides[0],
        own=sides[1],
        tolerances=SimpleNamespace(same_backend=False),
        whole=lambda match: pair,
    )
    where = First("backward", "pool", "pool", match=matched(*pair))
    found = list(from_pooling(case, where))
    assert [cause.kind for cause in found] == ["known difference"] * count
