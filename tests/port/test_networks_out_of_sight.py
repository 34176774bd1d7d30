"""Losses of networks that no rule has seen are refused by their line, and raise nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

RUNNER = """import torch
from torch import nn
made = []
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
class Entry:
    def __init__(self, model, trainable):
        self.model, self.trainable = model, trainable
class Runner:
    def __init__(self):
        up, down = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 3))
        vars(self).update(upstream=Entry(up, True), downstream=Entry(down, True))
        self.other = filled(nn.Linear(2, 2))
    def train(self, specaug=None):
        nets = [self.upstream, self.downstream]
        params = [p for one in nets for p in one.model.parameters()]
        params += list(self.other.parameters())
        optimizer = torch.optim.SGD(params, lr=0.01, weight_decay=0.1)
        for i, s in enumerate((1.0, 2.0, 3.0, 2.0)):
            x = torch.linspace(-1.0, s, 24).view(6, 4)
            features = self.upstream.model(x)
            if specaug:
                features, _ = specaug(features)
            loss = self.downstream.model(features).square().mean()
            loss = loss / 2
            loss.backward()
            made.append(loss.detach())
            if i % 2 == 0:
                continue
            optimizer.step()
            optimizer.zero_grad()
runner = Runner()
runner.train()
for one in (runner.upstream.model, runner.downstream.model, runner.other):
    made += [p.detach() for p in one.parameters()]
"""


def test_what_may_be_none_is_no_network_that_a_loss_comes_from() -> None:
    found = ported(RUNNER)
    refused = [one for one in found.edits if one.kind == "refused"]
    assert [one.rule for one in refused] == ["training step"]
    assert "`specaug`, which may be None" in refused[0].reason


def test_with_a_network_in_sight_it_is_one(tmp_path: Path) -> None:
    known = RUNNER.replace("vars(self).update(upstream=Entry(up, True), downstream=", "(").replace(
        "(Entry(down, True))", "self.upstream, self.downstream = Entry(up, 1), Entry(down, 1)"
    )
    assert known != RUNNER
    beside(known, tmp_path)
