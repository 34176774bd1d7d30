"""Methods in place on what is detached, on fields, and several on a line, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside
from .test_turns import HEAD, LEFT

CASES = {
    "an average over detached weights": """
import copy
average = copy.deepcopy(model)
def update(targets, sources, rate=0.9):
    for targ, src in zip(targets, sources):
        targ.detach().mul_(rate).add_(src, alpha=1 - rate)
def follow(one, other, rate):
    with torch.no_grad():
        for p, q in zip(one.parameters(), other.parameters()):
            p.detach().copy_(p.detach() * rate + q * (1 - rate))
for x, y in batches:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update(list(average.parameters()), list(model.parameters()))
    follow(average, model, 0.5)
made += [p.detach() for p in average.parameters()]
""",
    "several on a line": """
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.signs = torch.ones(3)
        self.sums = torch.full((2,), 3.0)
    def clear(self, n):
        self.signs.mul_(n), self.sums.add_(n)
counts = Counts()
counts.clear(2.0)
counts.clear(0.5)
made += [counts.signs, counts.sums]
""",
    "a field of what a method gives": """
from collections import namedtuple
Predictions = namedtuple("Predictions", ["noise", "start"])
class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        nn.init.constant_(self.inner.weight, 0.5)
        nn.init.zeros_(self.inner.bias)
    def predict(self, x):
        noise = self.inner(x)
        return Predictions(noise, x - noise)
    @torch.no_grad()
    def sample(self, x, clip=True):
        preds = self.predict(x)
        start = preds.start
        if clip:
            start.clamp_(-1.0, 1.0)
        return start * 2
    def forward(self, x, known=True):
        cond = None
        if known:
            with torch.no_grad():
                cond = self.predict(x).start
                cond.detach_()
        return self.inner(x) + cond
sampler = Sampler()
made += [sampler.sample(batches[2][0] * 3), sampler.sample(batches[0][0], False)]
made.append(sampler(batches[1][0]).detach())
""",
}


@pytest.mark.parametrize("name", CASES)
def test_its_values_are_those_of_torch(name, tmp_path):
    found = beside(HEAD + CASES[name] + LEFT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


HELD = """
class Sampler(nn.Module):
    def forward(self, x):
        preds = self.predict(x)
        start = preds.start
        start.clamp_(-1.0, 1.0)
        return start * 2 + preds.start
"""
RUN = """
from types import SimpleNamespace
sampler = Sampler()
sampler.model = model
sampler.predict = lambda x: SimpleNamespace(start=x * model[0].weight[:1])
loss = sampler(batches[1][0]).pow(2).sum()
loss.backward()
made += [loss.detach(), model[0].weight.grad]
"""


def test_a_field_that_is_asked_for_again_is_written_and_listed(tmp_path):
    script = HEAD + HELD + RUN
    line = next(n for n, text in enumerate(script.splitlines(), 1) if "clamp_" in text)
    found = beside(script, tmp_path)
    assert [edit.line for edit in found.edits if "a view raises" in edit.reason] == [line]
