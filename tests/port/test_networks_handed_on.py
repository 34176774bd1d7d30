"""Networks that a loss's own functions are handed under other names; losses of several loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

MADE = (
    FILLED
    + """parts = [filled(nn.Linear(3, 4)), filled(nn.Linear(4, 1))]
batches = [(torch.linspace(-1.0, s, 6).view(2, 3), torch.ones(2, 1) * s) for s in (1.0, 2.0, 3.0)]
optimizer = torch.optim.SGD([p for one in parts for p in one.parameters()], lr=0.05)
"""
)
LAST = """
made += [p.detach() for one in parts for p in one.parameters()]
"""
BY_NAME = """
def run(f, x):
    return f(x)
def compare(guess, x, y, rate):
    return (rate(run(guess, x)) - y).square().mean()
def train(first, second):
    for x, y in batches:
        loss = compare(first, x, y, rate=second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.item())
train(*parts)
"""
BY_METHODS = """
class Trainer:
    def __init__(self, body, top):
        self.body, self.top = body, top
    def compare(self, guess, x, y):
        return (self.over(guess, self.body(x)) - y).square().mean()
    def over(self, f, x):
        return f(x)
    def train(self):
        for x, y in batches:
            loss = self.compare(self.top, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            made.append(loss.item())
Trainer(*parts).train()
"""
TWICE = """
net = nn.Sequential(*parts)
for x, y in batches:
    loss = (net(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for x, y in batches:
    loss = (net(x) - y).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.item())
"""


BY_KEYWORD = """
def images(generator, rows):
    return generator(rows)
class Worker:
    def __init__(self, Gen, Dis):
        self.Gen, self.Dis = Gen, Dis
    def train(self):
        for x, y in batches:
            fake = images(generator=self.Gen, rows=x)
            loss = -self.Dis(fake).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            made.append(loss.item())
Worker(*parts).train()
"""


@pytest.mark.parametrize("script", [BY_NAME, BY_METHODS, TWICE, BY_KEYWORD])
def test_all_networks_of_a_loss_learn(script: str, tmp_path: Path) -> None:
    found = beside(MADE + script + LAST, tmp_path)
    assert not [one for one in found.edits if one.kind == "refused"]


def test_a_loop_over_what_a_network_gives_goes_through_what_is_recorded(tmp_path: Path) -> None:
    of_network = TWICE.replace("for x, y in batches:\n    loss = (net(x) - y)", "{}", 1).format(
        "for y in net(batches[0][0]):\n    loss = y"
    )
    together = of_network.replace("loss.backward()", "loss.backward(retain_graph=True)")
    together = together.replace("    optimizer.step()\n", "") + "optimizer.step()\n"
    found = beside(MADE + together + LAST, tmp_path)
    said = [one for one in found.edits if "record()" in one.reason and one.kind == "unproven"]
    assert [one.rule for one in said] == ["training step"]


ENGINE = """
def train_one_epoch(model: nn.Module, criterion, batches, optimizer, loss_scaler=None):
    model.train()
    for x, y in batches:
        loss = criterion(model(x), y)
        if loss_scaler is None:
            loss /= 2
            model.backward(loss)
            model.step()
        else:
            loss_scaler.scale(loss).backward()
            loss_scaler.step(optimizer)
            loss_scaler.update()
        made.append(loss.item())
scaler = torch.amp.GradScaler("cpu")
train_one_epoch(nn.Sequential(*parts), nn.MSELoss(), batches, optimizer, scaler)
"""


def test_a_network_that_goes_back_by_itself_is_refused_where_it_does(tmp_path: Path) -> None:
    found = beside(MADE + ENGINE + LAST, tmp_path)
    refused = [one for one in found.edits if one.kind == "refused"]
    before, _, _ = (MADE + ENGINE).partition("model.backward")
    assert [one.line for one in refused] == [before.count("\n") + 1]
    assert "an engine" in refused[0].reason


ABROAD = """import torch
import sample
class Worker:
    def __init__(self, Gen, Dis, optimizer):
        self.Gen, self.Dis, self.optimizer = Gen, Dis, optimizer
    def train(self, args):
        for i in range(4):
            fake = sample.images(generator=self.Gen, batch_size=4)
            loss = -self.Dis(fake).mean()
            self.optimizer.zero_grad()
            loss.backward()
            if i % 2 or args.always:
                self.optimizer.step()
            print(fake.shape, self.Dis(fake).mean())
"""


def test_a_keyword_of_another_files_function_says_that_it_is_a_network() -> None:
    given = ported(ABROAD).text.partition("port.loss(")[2].partition(")")[0].split(", ")
    assert {"self.Gen", "self.Dis"} <= set(given)
