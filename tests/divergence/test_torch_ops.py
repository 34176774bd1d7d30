"""The op that differs, inside of the layer that parts."""

from __future__ import annotations

import torch
from torch import nn

import mpcore as mp
from mpcore.tools.divergence import collect, find
from mpcore.tools.inspection import Request


class Gate(nn.Module):
    """A layer of several ops, one of which a port may get wrong."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x):
        y = torch.tanh(x @ self.weight.T)
        z = torch.nn.functional.leaky_relu(y, self.slope)
        return torch.sigmoid(z) * y


def evidence(slope: float, look: frozenset[str] = frozenset()):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Gate(slope), nn.Linear(3, 2))
    x = torch.linspace(-2, 2, 20).reshape(5, 4)
    amp = mp.prepare(model, torch.optim.SGD(model.parameters(), 0.1), "float32")
    driver = mp.load_backend("torch").driver()
    request = Request(keep=look, ops=look)
    return collect(
        driver, model, amp, lambda x: model(x).square().mean(), (x,), request=request, steps=1
    )


def test_the_first_op_that_differs_is_found():
    def closer(paths):
        return evidence(0.1, paths), evidence(0.11, paths)

    verdict = find(evidence(0.1), evidence(0.11), closer)
    assert (verdict.first.phase, verdict.first.layer) == ("forward", "1")
    names = [row.type for row in verdict.ops]
    assert names == ["mm", "tanh", "leaky_relu", "sigmoid", "mul"]
    beyond = [row.type for row in verdict.ops if row.output.beyond]
    assert beyond[0] == "leaky_relu"
    assert verdict.to_dict()["ops"][2]["path"] == "1/2:leaky_relu"


def test_nothing_is_looked_into_where_nothing_parts():
    asked = []
    assert find(evidence(0.1), evidence(0.1), asked.append).ops == ()
    assert asked == []
