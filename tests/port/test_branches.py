"""A network that runs in front of the branches that make its losses, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported
from .test_turns import HEAD, LEFT

BRANCHES = {
    "a loss of each branch": """
def train(kind):
    for x, y in batches:
        optimizer.zero_grad()
        out = model(x)
        if kind == "square":
            loss = out.pow(2).mean()
            loss.backward()
        elif kind == "mixed":
            loss = 0.3 * criterion(out, y) + 0.7 * out.abs().mean()
            loss.backward()
        else:
            loss = criterion(out, y)
            loss.backward()
        optimizer.step()
        made.extend([loss.detach(), out.detach()])
for kind in ("square", "mixed", "other"):
    train(kind)
""",
    "an attack that stops early": """
def attack(x, y, kind):
    delta = torch.zeros_like(x)
    delta.requires_grad = True
    for _ in range(3):
        output = model(x + delta)
        if kind == "margin" and bool((output.max(1)[1] != y).all()):
            break
        if kind == "other":
            loss = F.cross_entropy(output, y)
            loss.backward()
            grad = delta.grad.detach()
        elif kind == "margin":
            loss = output.pow(2).mean()
            loss.backward()
            grad = delta.grad.detach()
        else:
            loss = F.cross_entropy(model(x + delta), y) * 2
            loss.backward()
            grad = delta.grad.detach()
        delta.data = torch.clamp(delta + 0.5 * torch.sign(grad), -2, 2)
        delta.grad.zero_()
        made.append(loss.detach())
    return delta.detach()
for x, y in batches:
    made += [attack(x, y, kind) for kind in ("other", "margin", "again")]
""",
    "two networks and a scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
top = nn.Linear(3, 3)
for p in top.parameters():
    p.data.fill_(0.1)
optimizer.add_param_group({"params": list(top.parameters())})
for i, (x, y) in enumerate(batches):
    hidden = model(x)
    with torch.no_grad():
        fixed = top(hidden)
    out = top(hidden)
    optimizer.zero_grad()
    if i % 2:
        loss = criterion(out, y)
        scaler.scale(loss).backward()
    else:
        loss = (out - fixed * 0.5).pow(2).mean()
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    made.append(loss.detach())
""",
    "what stands in the branch is made of it": """
def train():
    def run(z):
        return model(z)
    for i, (x, y) in enumerate(batches):
        out = run(x)
        keep = out.detach()
        if i > 0:
            optimizer.zero_grad()
            scaled = out * 0.5
            loss = criterion(scaled - keep, y)
            loss.backward()
            optimizer.step()
            made.append(loss.detach())
        made.append(keep.mean())
train()
""",
    "a method that runs a network of the module": """
class Trainer:
    def features(self, x):
        return model(x)
    def train(self):
        for i, (x, y) in enumerate(batches):
            out = self.features(x)
            optimizer.zero_grad()
            if i != 1:
                loss = criterion(out, y)
                loss.backward()
            optimizer.step()
            made.append(loss.detach())
Trainer().train()
""",
    "what stands in front of the branch is made of it": """
top = nn.Linear(3, 3)
for p in top.parameters():
    p.data.fill_(0.1)
def train():
    for i, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        hidden = model(x)
        first, second = hidden[:3], hidden[3:]
        if i != 1:
            loss = criterion(top(first) + second, y[:3])
            loss.backward()
        else:
            loss = top(second).pow(2).mean()
            loss.backward()
        optimizer.step()
        made.append(loss.detach())
train()
""",
    "accumulated": """
def train():
    for i, (x, y) in enumerate(batches + batches):
        out = model(x)
        if i != 2:
            loss = criterion(out, y) / 2
            loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        made.append(out.detach())
train()
""",
}


ALONE = {
    "a loss of each branch",
    "two networks and a scaler",
    "what stands in front of the branch is made of it",
}
"""Where each branch makes a loss: the network runs in these alone, once, as in torch."""


@pytest.mark.parametrize("name", sorted(BRANCHES))
def test_a_network_in_front_of_branches_runs_in_their_losses(name, tmp_path):
    found = beside(HEAD + BRANCHES[name] + LEFT, tmp_path)
    kinds = {edit.kind for edit in found.edits if "where it was, and in the loss" in edit.effect}
    assert kinds == (set() if name in ALONE else {"changed"})
    assert "refused" not in {edit.kind for edit in found.edits}


def test_numbers_of_classes_are_handed_in_as_they_are(tmp_path):
    body = """
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    out = model(x)
    pred = out.argmax(1)
    if i != 1:
        loss = criterion(model(x * 2), pred)
        loss.backward()
    optimizer.step()
    made.append(out.detach())
"""
    found = beside(HEAD + body + LEFT, tmp_path)
    assert not [edit for edit in found.edits if "where it was" in edit.effect]


HELD = {
    "a list": ("outs = []\n    outs.append(model(x))", "if i:", "outs[0]"),
    "a dictionary": ('outs = {}\n    outs["a"] = model(x)', "if i:", 'outs["a"]'),
    "an attribute": ("criterion.out = model(x)", "if i:", "criterion.out"),
    "changed in place": ("out = model(x)\n    out[:, 0] = 0", "if i:", "out"),
    "a condition": ("pass", "if (out := model(x)).mean() < 9:", "out"),
    "a number that moves": (
        "out = model(x) * made[0]\n    made[0] = made[0] * 2",
        "if i:",
        "out",
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_a_network_that_something_holds_goes_through_what_is_recorded(name, tmp_path):
    lines, test, value = HELD[name]
    loop = f"made.append(torch.tensor(1.0))\nfor i, (x, y) in enumerate(batches):\n    {lines}\n"
    loop += f"    {test}\n"
    step = f"        loss = criterion({value}, y)\n        loss.backward()\n"
    step += "        made.append(loss.detach())\n    optimizer.step()\n"
    found = beside(HEAD + loop + step + LEFT, tmp_path)
    said = [e.line for e in found.edits if e.kind == "unproven" and "record()" in e.reason]
    assert said == [(HEAD + loop).count("\n") + 2]


def test_values_alone_are_handed_in_as_they_are(tmp_path):
    body = """
def features(x):
    with torch.no_grad():
        return model(x).detach()
for i, (x, y) in enumerate(batches):
    target = features(x) * 0.5
    optimizer.zero_grad()
    if i != 1:
        loss = (model(x) - target).pow(2).mean()
        loss.backward()
    optimizer.step()
    made.append(target)
"""
    found = beside(HEAD + body + LEFT, tmp_path)
    assert not [edit for edit in found.edits if "where it was" in edit.effect]


OUTSIDE = {
    "in a loop of its own": (
        "for part in range(2):\n        loss = criterion(out * part, y)\n"
        "        loss.backward(retain_graph=True)"
    ),
    "overwritten between": (
        "x = x * 2\n    if i > 0:\n        loss = criterion(out, y)\n        loss.backward()"
    ),
    "another loss beside it": (
        "if i > 0:\n        loss = criterion(out, y)\n        loss.backward(retain_graph=True)\n"
        "    total = out.mean()\n    total.backward()"
    ),
    "moved between": (
        "optimizer.step()\n    if i > 0:\n        loss = criterion(out, y)\n        loss.backward()"
    ),
}


@pytest.mark.parametrize("lines", OUTSIDE.values(), ids=OUTSIDE)
def test_what_would_differ_goes_through_what_is_recorded(lines, tmp_path):
    loop = "for i, (x, y) in enumerate(batches):\n    out = model(x)\n"
    shown = "    made.append(out.detach())\n"
    script = f"{HEAD}{loop}    {lines}\n    optimizer.step()\n{shown}{LEFT}"
    moved = lines is OUTSIDE["moved between"]  # which torch notices behind it, and raises
    found = ported(script) if moved else beside(script, tmp_path)
    place = lines[: lines.index("loss.backward")].count("\n") + HEAD.count("\n") + 3
    said = [edit for edit in found.edits if "record()" in edit.reason and edit.kind == "unproven"]
    assert place in [edit.line for edit in said]
    assert "a network makes `out` outside" in said[0].reason
