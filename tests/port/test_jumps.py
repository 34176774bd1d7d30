"""A jump between a network and the loss of what it gives, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported, recorded
from .test_turns import HEAD, LEFT

JUMPS = {
    "an attack that stops early": """
def attack(x, y, early):
    delta = torch.zeros_like(x)
    delta.requires_grad = True
    for _ in range(4):
        output = model(x + delta)
        if early and bool((output.max(1)[1] != y).all()):
            break
        loss = F.cross_entropy(output, y)
        loss.backward()
        grad = delta.grad.detach()
        delta.data = torch.clamp(delta + 0.5 * torch.sign(grad), -2, 2)
        delta.grad.zero_()
        made.append(loss.detach())
    return delta.detach()
for x, y in batches:
    made += [attack(x, y, False), attack(x, y, True)]
""",
    "a batch that is left out": """
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    out = model(x)
    if out.mean() > 2 or i == 1:
        continue
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
""",
    "a return, a scaler, a target without gradients": """
teacher = nn.Linear(4, 3)
for p in teacher.parameters():
    p.data.fill_(0.25)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
def train():
    for i, (x, y) in enumerate(batches):
        with torch.no_grad():
            target = teacher(x)
        out = model(x)
        if torch.isnan(out).any():
            continue
        if i == 2:
            return
        loss = criterion(out, y) + (out - target).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        made.append(loss.detach())
train()
""",
    "accumulated": """
def train():
    for i, (x, y) in enumerate(batches + batches):
        out = model(x)
        if out.sum().item() > 1e6:
            break
        loss = criterion(out, y) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        made.append(loss.detach())
train()
""",
    "what counts runs once": """
count = 0
for x, y in batches:
    optimizer.zero_grad()
    count += 1
    out = model(x) * count
    if out.mean() > 1e6:
        continue
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made.append(torch.tensor(float(count)))
""",
    "a function of the script, and a detached value": """
def run(z):
    z = z * 1.5
    parts = []
    parts.append(z)
    return model(parts[0])
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    out = run(x)
    fixed = out.detach()
    if fixed.mean() > 1e6:
        continue
    loss = criterion(out - 0.1 * fixed, y)
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
""",
}


@pytest.mark.parametrize("name", sorted(JUMPS))
def test_a_network_in_front_of_a_jump_runs_in_the_loss_as_well(name, tmp_path):
    found = beside(HEAD + JUMPS[name] + LEFT, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}
    again = [edit for edit in found.edits if "where it was, and in the loss" in edit.effect]
    assert [edit.kind for edit in again] == ["changed"]


LOOP = """
seen = []
def noted(out):
    seen.append(out.detach())
    return out * 2
for i, (x, y) in enumerate(batches):
    {}
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
"""
SHOWN = "    made.append(loss.detach())\n"
TWICE = {
    "overwritten": "x = model(x)\n    out = x * 2\n    if out.mean() > 9:\n        continue",
    "overwritten behind": (
        "out = model(x)\n    if out.mean() > 9:\n        continue\n    x = x * 2\n"
        "    if x.mean() > 9:\n        break"
    ),
    "added up": "out = model(x)\n    out += 1\n    if out.mean() > 9:\n        continue",
    "in place": "out = model(x)\n    out.mul_(2)\n    if out.mean() > 9:\n        continue",
    "a function that keeps": "out = noted(model(x))\n    if out.mean() > 9:\n        continue",
    "moved between": (
        "out = model(x)\n    optimizer.step()\n    if out.mean() > 9:\n        continue"
    ),
    "an attribute": "model.out = out = model(x)\n    if out.mean() > 9:\n        continue",
    "in what makes it": (
        "out = model(x)\n    if out.mean() > 9:\n        out = out * 2\n        continue"
    ),
}


@pytest.mark.parametrize("lines", TWICE.values(), ids=TWICE)
def test_what_may_not_run_twice_goes_through_what_is_recorded(lines, tmp_path):
    script = HEAD + LOOP.format(lines) + SHOWN + LEFT
    moved = lines is TWICE["moved between"]  # which torch notices behind it, and raises
    found = ported(script) if moved else beside(script, tmp_path)
    assert recorded(found) == [HEAD.count("\n") + 9 + lines.count("\n")]


KEPT = """
import copy
import random
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.n, self.seen = 0, []
    def forward(self, x):
        self.n += 1
        return self.fc(x) * self.n
class Derived(Counting):
    pass
class Listing(Counting):
    def forward(self, x):
        out = self.fc(x)
        self.seen.append(out.detach())
        return out
class Holding(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Derived()
    def forward(self, x):
        return self.body(x)
class Momentum(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.slow = nn.Linear(4, 3), nn.Linear(4, 3)
    def move(self):
        for a, b in zip(self.fc.parameters(), self.slow.parameters()):
            b.data = b.data * 0.9 + a.data * 0.1
    def forward(self, x):
        self.move()
        return self.fc(x)
net = NETWORK
random.seed(0)
for p in net.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scale, scales, alpha = {"v": 1.0}, [1.0, 2.0, 3.0], 1.0
draws = random.Random(0)
class State:
    n = 1
state = State()
def bumped():
    global alpha
    alpha = alpha * 2
def raised(held):
    held.n *= 2
def validated(x):
    net.eval()
    return net(x).mean().item()
def drawn(x):
    return net(x) * random.random()
def train():
    for i, (x, y) in enumerate(batches):
        LINES
        if out.mean() > 9:
            continue
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.detach())
train()
made += [p.detach() for p in net.parameters()]
"""
STATES = {
    "a network that counts": ("Counting()", "out = net(x)"),
    "an inherited one that counts": ("Derived()", "out = net(x)"),
    "one inside of another": ("Holding()", "out = net(x)"),
    "one that keeps a list": ("Listing()", "out = net(x)"),
    "one that moves weights": ("Momentum()", "out = net(x)"),
    "what is taken from a list": ("model", "out = net(x) * scales.pop()"),
    "what is taken from an iterator": ("model", "out = net(x) * next(iter(scales))"),
    "Python's noise": ("model", "out = net(x) * random.random()"),
    "noise of an object": ("model", "out = net(x) * draws.random()"),
    "noise of a function": ("model", "out = drawn(x)"),
    "a mode between": ("model", "out = net(x); net.eval()"),
    "a mode by a function between": ("model", "out = net(x)\n        worth = validated(x)"),
    "weights between": ("model", "out = net(x)\n        net[2].bias.data.zero_()"),
    "every weight between": (
        "model",
        "out = net(x)\n        for p in net.parameters(): p.data.clamp_(-1, 1)",
    ),
    "a number between": ("model", 'out = net(x) * scale["v"]\n        scale["v"] = 2.0'),
    "a global between": ("model", "out = net(x) * alpha\n        bumped()"),
    "an argument between": ("model", "out = net(x) * state.n\n        raised(state)"),
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_second_run_would_change_goes_through_what_is_recorded(name, tmp_path):
    network, lines = STATES[name]
    script = HEAD + KEPT.replace("NETWORK", network).replace("LINES", lines)
    place = script[: script.index("loss.backward()")].count("\n") + 1
    assert recorded(beside(script, tmp_path)) == [place]


def test_a_network_that_a_condition_names_goes_through_what_is_recorded(tmp_path):
    """Nothing runs it in the loss: it would have no gradients."""
    lines = "if (out := model(x)).mean() > 9:\n        continue"
    found = beside(HEAD + LOOP.format(lines) + SHOWN + LEFT, tmp_path)
    assert recorded(found) == [HEAD.count("\n") + 10]


@pytest.mark.parametrize("network", ["Counting()", "model"])
def test_a_jump_stays_behind_what_counts_its_runs(network):
    """It would come in front of the whole step: what leaves the turn would not be counted."""
    lines = "out = net(x)\n        if i == 1: continue"
    script = HEAD + KEPT.replace("NETWORK", network).replace("LINES", lines)
    script = script.replace("        if out.mean() > 9:\n            continue\n", "")
    assert bool(recorded(ported(script))) is (network != "model")


SKIPS = """
for i, (x, y) in enumerate(batches):
    FIRST
    SECOND
    loss = criterion(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
"""


@pytest.mark.parametrize("network_first", [True, False])
def test_a_turn_that_is_left_behind_a_network_runs_none_and_the_report_says_so(
    network_first, tmp_path
):
    lines = ("out = model(x)", "if i == 1: continue")
    first, second = lines if network_first else reversed(lines)
    found = beside(HEAD + SKIPS.replace("FIRST", first).replace("SECOND", second) + LEFT, tmp_path)
    said = [edit for edit in found.edits if "runs no network now" in edit.effect]
    assert [edit.kind for edit in said] == ["changed"] * network_first
