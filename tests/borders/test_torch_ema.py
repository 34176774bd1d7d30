"""Averages of a torch model whose buffers come and go, and of loops of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp
from mpcore.errors import BackendError


class Net(nn.Module):
    """Fills a buffer at its first forward pass, as several normalisations and quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(8, 4)
        self.register_buffer("scale", None)

    def forward(self, x):
        if self.scale is None:
            self.scale = x.detach().abs().mean(0)
        return self.fc(x / self.scale)


def prepared(policy: str = "mixed_bfloat16"):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, mp.prepare(model, optimizer, policy)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4


def entropy(model):
    return lambda x, y: functional.cross_entropy(model(x), y)


def test_a_buffer_that_is_filled_later_is_followed_from_then_on():
    model, _, amp = prepared()
    average = mp.EMA(amp, decay=0.5)
    assert "scale" not in average.weights()
    amp.step(entropy(model), *batch())
    first = average.weights()["scale"]
    assert torch.equal(torch.from_numpy(first), model.scale)
    model.scale.mul_(2)
    amp.step(entropy(model), *batch())
    torch.testing.assert_close(torch.from_numpy(average.weights()["scale"]), model.scale * 0.75)
    mine = model.scale.clone()
    with average:
        torch.testing.assert_close(model.scale, mine * 0.75)
    assert torch.equal(model.scale, mine)
    model.scale = None
    with average:
        model(batch()[0])
    amp.step(entropy(model), *batch())
    assert average.weights()["scale"].shape == (8,)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "model_bfloat16"])
def test_a_loop_of_ones_own_is_refused_inside(policy):
    model, optimizer, amp = prepared(policy)
    average = mp.EMA(amp, decay=0.5)
    amp.step(entropy(model), *batch())
    slots = [slot["momentum_buffer"] for slot in optimizer.state.values()]
    before = [slot.clone() for slot in slots]
    with average:
        loss = entropy(model)(*batch())
        with pytest.raises(BackendError, match="must not run inside `with average:`"):
            amp.backward(loss)
        with pytest.raises(BackendError, match="must not run inside `with average:`"):
            amp.step(entropy(model), *batch())
    assert all(map(torch.equal, slots, before))
    amp.abort_step()
    amp.backward(entropy(model)(*batch()))
    assert amp.apply().stepped
