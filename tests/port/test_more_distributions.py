"""Distributions and their divergences, vectors of Parameters and nested batches, beside torch."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
import torch

import mpcore_port_runtime as port

from .ports import FILLED, NET, beside

ONE = np.array([[0.3, -1.2, 0.7], [2.0, 0.1, -0.4]], np.float32)
TWO = np.array([[-0.6, 0.4, 0.2], [0.5, -1.5, 0.9]], np.float32)
CHOSEN = np.eye(3, dtype=np.float32)[[1, 0]]
FLAGS = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], np.float32)

MADE = {
    "bernoulli": (lambda d, x: d.Bernoulli(logits=x), FLAGS),
    "bernoulli of shares": (lambda d, x: d.Bernoulli(abs(x) / 3), FLAGS),
    "places": (lambda d, x: d.Categorical(logits=x), np.array([2, 0])),
    "one hot": (lambda d, x: d.OneHotCategorical(logits=x), CHOSEN),
    "one hot of shares": (lambda d, x: d.OneHotCategorical(probs=abs(x)), CHOSEN),
    "normal": (lambda d, x: d.Normal(x, abs(x) + 0.5), ONE),
    "events": (lambda d, x: d.Independent(d.Normal(x, 0.5), 1), ONE),
    "rows of flags": (lambda d, x: d.Independent(d.Bernoulli(logits=x), 2), FLAGS),
    "straight": (lambda d, x: d.OneHotCategoricalStraightThrough(logits=x), CHOSEN),
}


@pytest.mark.parametrize("case", MADE)
def test_probabilities_entropies_and_divergences_are_torchs(case):
    make, value = MADE[case]
    theirs = [torch.tensor(one, requires_grad=True) for one in (ONE, TWO)]
    first, second = (make(torch.distributions, one) for one in theirs)
    wanted = [
        first.log_prob(torch.tensor(value)),
        first.entropy(),
        torch.distributions.kl_divergence(first, second),
    ]
    sum(one.sum() * k for k, one in enumerate(wanted, 1)).backward()

    def parts(x, y):
        one, other = (make(port.distributions, z) for z in (x, y))
        given = one.log_prob(ms.Tensor(value)), one.entropy()
        return [*given, port.distributions.kl_divergence(one, other)]

    def total(x, y):
        return sum(one.sum() * k for k, one in enumerate(parts(x, y), 1))

    ours = ms.Tensor(ONE), ms.Tensor(TWO)
    for one, other in zip(parts(*ours), wanted, strict=True):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one.asnumpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)
    slopes = ms.grad(total, (0, 1))(*ours)
    for slope, one in zip(slopes, theirs, strict=True):
        np.testing.assert_allclose(slope.asnumpy(), one.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_moments_and_bounds_are_torchs():
    shares = np.array([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]], np.float32)
    others = np.array([[0.2, 0.0, 0.8], [0.5, 0.5, 0.0]], np.float32)
    for name in ("Categorical", "OneHotCategorical", "Bernoulli"):
        theirs = [getattr(torch.distributions, name)(torch.tensor(x)) for x in (shares, others)]
        ours = [getattr(port.distributions, name)(ms.Tensor(x)) for x in (shares, others)]
        wanted = torch.distributions.kl_divergence(*theirs).numpy()
        np.testing.assert_allclose(
            port.distributions.kl_divergence(*ours).asnumpy(), wanted, rtol=1e-5
        )
    for name in ("mean", "mode", "variance"):
        wanted = getattr(theirs[0], name).numpy()
        np.testing.assert_allclose(getattr(ours[0], name).asnumpy(), wanted, rtol=1e-6)
    low, high = np.array([0.0, -1.0], np.float32), np.array([2.0, 0.5], np.float32)
    at = np.array([1.0, 3.0], np.float32)
    law = torch.distributions.Uniform(*map(torch.tensor, (low, high)), validate_args=False)
    own = port.distributions.Uniform(*map(ms.Tensor, (low, high)))
    for one, other in (
        (own.log_prob(ms.Tensor(at)), law.log_prob(torch.tensor(at))),
        *((getattr(own, name), getattr(law, name)) for name in ("mean", "stddev", "variance")),
        (own.entropy(), law.entropy()),
    ):
        np.testing.assert_allclose(one.asnumpy(), other.numpy(), rtol=1e-6)


def test_draws_are_of_their_kind():
    scores = ms.Tensor(ONE)
    hot = port.distributions.OneHotCategorical(logits=scores).sample((4,))
    assert hot.shape == (4, 2, 3)
    assert (hot.sum(-1) == 1).all()
    flags = port.distributions.Bernoulli(ms.Tensor([0.0, 1.0, 0.5])).sample((400,)).asnumpy()
    assert flags[:, 0].max() == 0
    assert flags[:, 1].min() == 1
    assert 0.4 < flags[:, 2].mean() < 0.6
    drawn = port.distributions.Uniform(1.0, 3.0).sample((400,)).asnumpy()
    assert 1 <= drawn.min() < drawn.max() <= 3
    shares = port.distributions.Beta(2.0, 6.0).sample((400,)).asnumpy()
    assert 0.2 < shares.mean() < 0.3
    assert port.distributions.Beta(1.0, 1.0).sample().shape == ()

    def straight(x):
        law = port.distributions.OneHotCategoricalStraightThrough(logits=x)
        return (law.rsample() * ms.Tensor(TWO)).sum()

    theirs = torch.tensor(ONE, requires_grad=True)
    (torch.softmax(theirs, -1) * torch.tensor(TWO)).sum().backward()
    np.testing.assert_allclose(ms.grad(straight)(scores).asnumpy(), theirs.grad.numpy(), atol=1e-6)


def test_beta_has_its_density():
    one, zero, values = np.array([[0.5], [2.0], [3.5]]), np.array([1.0, 4.0]), np.array([0.1, 0.75])
    shape = (3, 2)

    def asked(place, concentration1, concentration0, value):
        law = place.Beta(concentration1, concentration0)
        return law.log_prob(value), law.entropy()

    given = [np.broadcast_to(part, shape).astype(np.float32) for part in (one, zero, values)]
    theirs = [torch.tensor(part, requires_grad=True) for part in given]
    density, entropy = asked(torch.distributions, *theirs)
    (density.sum() + entropy.square().sum()).backward()
    ours = [ms.Tensor(part) for part in given]
    for mine, other in zip(asked(port.distributions, *ours), (density, entropy), strict=True):
        np.testing.assert_allclose(mine.asnumpy(), other.detach().numpy(), rtol=1e-5, atol=1e-6)

    def whole(*parts):
        density, entropy = asked(port.distributions, *parts)
        return density.sum() + entropy.square().sum()

    for mine, other in zip(ms.grad(whole, (0, 1, 2))(*ours), theirs, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), other.grad.numpy(), rtol=1e-4, atol=1e-5)
    half = port.distributions.Beta(ours[0].half(), ours[1].half()).log_prob(ours[2].half())
    assert half.dtype == ms.float16


@pytest.mark.parametrize("asked", ["rsample()", "cdf(0.5)"])
def test_what_is_not_ported_says_so(asked):
    law = port.distributions.Beta(1.0, 1.0)
    with pytest.raises(NotImplementedError, match="Beta is not ported"):
        eval(f"law.{asked}", {"law": law})
    with pytest.raises(NotImplementedError, match="Beta and Uniform is not ported"):
        port.distributions.kl_divergence(law, port.distributions.Uniform(0.0, 1.0))


LOOP = (
    FILLED
    + NET
    + """from torch.distributions import Independent, Normal, OneHotCategorical
from torch.distributions.kl import kl_divergence
net, other = filled(Net()), filled(Net(5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
aim = torch.eye(2)[[0, 1, 1, 0]]
for step in range(3):
    optimizer.zero_grad()
    out = net(x)
    prior = Independent(Normal(torch.zeros(4, 2), torch.ones(4, 2)), 1)
    post = Independent(Normal(out, torch.ones(4, 2) * 2), 1)
    law = OneHotCategorical(logits=out)
    loss = kl_divergence(post, prior).mean() - law.log_prob(aim).mean() - 0.1 * law.entropy().mean()
    loss.backward()
    optimizer.step()
    made.append(loss.item())
made.append(net.weight)
"""
)


def test_a_loop_over_distributions_trains_as_torchs(tmp_path):
    found = beside(LOOP, tmp_path)
    assert found.said.kind != "stops"


VECTORS = (
    FILLED
    + NET
    + """from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils._pytree import tree_map
net = filled(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
vector = parameters_to_vector(net.parameters())
made.append(vector)
vector_to_parameters(vector.detach() * 0.5, net.parameters())
made += list(net.parameters())
flat = _flatten_dense_tensors([p.data for p in net.parameters()])
made.append(flat)
with torch.no_grad():
    params = list(net.parameters())
    for p, values in zip(params, _unflatten_dense_tensors(flat * 3, params)):
        p.copy_(values)
made += list(net.parameters())
batch = {"x": [torch.ones(2), torch.zeros(3)], "y": (torch.arange(3), 4)}
moved = tree_map(lambda t: t * 2, batch)
made += [*moved["x"], *moved["y"]]
made += [torch.clamp_min(flat, 0.1), torch.clamp_max(flat, max=0.1)]
made.append(torch.rot90(flat[:6].view(2, 3)))
"""
)


def test_vectors_of_parameters_and_nested_batches(tmp_path):
    found = beside(VECTORS, tmp_path)
    assert not any(edit.kind == "refused" for edit in found.edits)
