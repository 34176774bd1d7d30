"""What one turn of a training loop leaves to the next, or takes away, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
for p in model.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
labels = torch.tensor([0, 1, 2, 2, 1, 0])
batches = [(torch.linspace(-1.0, s, 24).view(6, 4), labels) for s in (1.0, 2.0, 3.0)]
made = []
"""
LEFT = """
made += [p.detach() for p in model.parameters()]
"""
STEP = """
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.detach())
"""
KEPT = """
def train():
    for i, (x, y) in enumerate(batches + batches):
        out = model(x)
        loss = criterion(out, y)
        if i % 3 == 0:
            base = loss.detach()
        loss = loss / base
"""
TURNS = {
    "a value of a turn before": KEPT + STEP + "train()\n",
    "the same in torch's form": (
        KEPT + "        if loss > 1e6:\n            break" + STEP + "train()\ntrain()\n"
    ),
    "of the module": """
for i, (x, y) in enumerate(batches):
    for part in (x, x * 2):
        loss = criterion(model(part), y)
        if i == 0:
            base = loss.detach()
        loss = loss / base
"""
    + STEP,
    "of what stands behind the loss": """
def train():
    for i, (x, y) in enumerate(batches + batches):
        out = model(x)
        loss = criterion(out, y)
        if i > 0:
            loss = loss + 0.1 * (out - prev).pow(2).mean()
        prev = out.detach()
"""
    + STEP
    + "train()\n",
    "a mode that changes behind the loss": """
norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
for p in norm.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
optimizer.add_param_group({"params": list(norm.parameters())})
def train():
    for x, y in batches:
        norm.train()
        loss = criterion(norm(x), y)
        norm.eval()
"""
    + STEP
    + "train()\nmade.append(norm[1].running_mean * 1)\n",
    "a number that a method moves behind the loss": """
class Trainer:
    n = 1
    def bump(self):
        self.n += 1
    def train(self):
        for x, y in batches:
            loss = criterion(model(x), y) * self.n
            self.bump()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            made.append(loss.detach())
Trainer().train()
""",
    "weights that a function moves in front of the step": """
def decay(net):
    for p in net.parameters():
        p.data.mul_(0.9)
def train():
    for x, y in batches:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        decay(model)
        optimizer.step()
        made.append(loss.detach())
train()
""",
    "a jump between a backward pass and its step": """
def train():
    for i, (x, y) in enumerate(batches + batches):
        loss = criterion(model(x), y) / 2
        loss.backward()
        if (i + 1) % 2:
            continue
        optimizer.step()
        optimizer.zero_grad()
        made.append(loss.detach())
train()
""",
    "a jump between a loss and its backward pass": """
def train():
    for i, (x, y) in enumerate(batches):
        loss = criterion(model(x), y)
        if i == 2:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made.append(loss.detach())
train()
""",
    "of the first turn of all, in front of a jump": """
def train():
    for epoch in range(2):
        for i, (x, y) in enumerate(batches):
            out = model(x)
            if epoch == 0 and i == 0:
                anchor = out.detach()
            if i == 2:
                continue
            loss = criterion(out, y) + (out - anchor).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            made.append(loss.detach())
train()
""",
    "deleted, and any error is waited for": """
def train():
    for x, y in batches:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del out
        try:
            made.append(out.mean().detach())
        except Exception:
            made.append(loss.detach() * 2)
train()
""",
    "with a region": """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
def train():
    for i, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            out = model(x)
            if i == 0:
                first = out.detach()
            loss = (out - first - 1).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        made.append(loss.detach())
train()
""",
    "accumulated": """
def train():
    for i, (x, y) in enumerate(batches + batches):
        loss = criterion(model(x), y)
        if i % 2 == 0:
            base = loss.detach()
        elif i > 100:
            base = None
        loss = loss / base
        loss.backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        made.append(loss.detach())
train()
""",
    "deleted": """
def train():
    for x, y in batches:
        x = x * 2
        out = model(x)
        loss = criterion(out, y)
        del x, out  # no longer needed
        if len(made) < 2:
            loss = loss * 0.5
"""
    + STEP
    + "        del loss\ntrain()\n",
    "deleted in torch's form": """
for x, y in batches:
    for part in range(2):
        out = model(x)
        if out.mean() > 1e6:
            break
        kept = {"out": out}
        del out, y; y = labels
        loss = criterion(kept["out"], y)
        del kept["out"]
"""
    + STEP,
    "a network of one branch": """
class Extra(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)
        for p in self.fc.parameters():
            p.data.fill_(0.5)
    def forward(self, x):
        return self.fc(x).pow(2).mean()
def train(extra):
    if extra:
        second = Extra()
        third = nn.MSELoss()
    for x, y in batches:
        out = model(x)
        loss = criterion(out, y)
        if extra:
            loss = loss + second(out) + third(out, out * 0)
        optimizer.zero_grad()
        loss.backward()
        made.append(model[0].weight.grad.clone())
        if loss > 1e6:
            break
        optimizer.step()
train(False)
train(True)
""",
}


@pytest.mark.parametrize("name", sorted(TURNS))
def test_turns_are_torchs(name, tmp_path):
    found = beside(HEAD + TURNS[name] + LEFT, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}


def test_what_is_read_under_its_own_condition_is_no_argument():
    """``if aux: b = ...`` and ``if aux: loss = loss + b``: nothing of a turn before is needed."""
    body = """
def train(aux):
    for x, y in batches:
        loss = criterion(model(x), y)
        if aux:
            second = model(x).pow(2).mean()
        if aux and len(made) < 9:
            loss = loss + second
"""
    found = ported(HEAD + body + STEP)
    assert "def forward_fn(x, y):" in found.text
    assert "second = None" not in found.text


WAITED = """
def train():
    for i, (x, y) in enumerate(batches):
        out = model(x)
        try:
            loss = criterion(out, y) / base
        except UnboundLocalError:
            base = out.detach().pow(2).mean()
            loss = criterion(out, y) / base
        if loss > 1e6:
            break
"""


def test_an_error_of_python_that_is_waited_for_is_unproven():
    found = ported(HEAD + WAITED + STEP)
    said = [edit for edit in found.edits if edit.kind == "unproven"]
    assert any("`base` is None there" in edit.reason for edit in said)


def test_a_name_that_is_asked_for_when_it_is_gone_stays_deleted():
    body = """
def train():
    for x, y in batches:
        loss = criterion(model(x), y)
        try:
            print(seen)
        except NameError:
            pass
        seen = 1
        del seen
"""
    assert "del seen" in ported(HEAD + body + STEP).text


def test_what_does_not_train_keeps_its_deletions():
    body = "def shown(x):\n    y = x * 2\n    del x\n    return y\n"
    assert "del x" in ported(HEAD + body + "loss = model(labels).mean()\nloss.backward()\n").text
