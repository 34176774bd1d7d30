"""A jump between a network and the loss of what it gives, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported
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
def test_what_may_not_run_twice_is_refused_by_its_line(lines):
    found = ported(HEAD + LOOP.format(lines))
    refused = [edit for edit in found.edits if edit.kind == "refused"]
    assert [edit.line for edit in refused] == [HEAD.count("\n") + 9 + lines.count("\n")]
