"""A network in front of branches that all make a loss of it, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported
from .test_turns import HEAD, LEFT

DROPS = """
class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
        self.norm = nn.BatchNorm1d(3)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return self.norm(self.inner(x))
net = Counted()
"""
SWIN = """
def train(steps, clip, mix):
    for i, (x, y) in enumerate(batches + batches):
        if mix is not None:
            x, y = mix(x, y)
        outputs = net(x)
        if steps > 1:
            loss = criterion(outputs, y)
            loss = loss / steps
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            if (i + 1) % steps == 0:
                scaler.step(optimizer)
                optimizer.zero_grad()
                scaler.update()
        else:
            loss = criterion(outputs, y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        made.append(loss.item())
        made.append((outputs.detach().argmax(-1) == y).float().mean().item())
        made.append(x.sum().item())
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
train(2, None, None)
train(1, None, lambda x, y: (x * 0.5, y))
made.append(net.calls)
"""
CHAIN = """
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    out = net(x)
    if i == 0:
        loss = criterion(out, y)
        if i < 5:
            loss.backward()
    elif i == 1:
        loss = (out ** 2).mean()
        made.append(loss.item())
        loss.backward()
    else:
        weight = 0.5
        loss = weight * criterion(out, y)
        loss.backward()
    optimizer.step()
    made.append(out.detach())
made.append(net.calls)
"""
CASES = {"accumulated or not": SWIN, "one of three": CHAIN}


@pytest.mark.parametrize("name", CASES)
def test_it_runs_once(name, tmp_path):
    found = beside(HEAD + DROPS + CASES[name] + LEFT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert "computed" not in " ".join(edit.effect for edit in found.edits)


KEPT = {
    "a branch without a loss": """
for i, (x, y) in enumerate(batches):
    x, y = x * 1, y
    out = net(x)
    if i == 0:
        loss = criterion(out, y)
        loss.backward()
    else:
        made.append(out.detach())
""",
    "a condition that asks the network": """
for i, (x, y) in enumerate(batches):
    x, y = x * 1, y
    out = net(x)
    if out.mean() > 0:
        loss = criterion(out, y)
        loss.backward()
    else:
        loss = -criterion(out, y)
        loss.backward()
""",
    "a loss behind the branches": """
for i, (x, y) in enumerate(batches):
    x, y = x * 1, y
    out = net(x)
    if i == 0:
        loss = criterion(out, y)
        loss.backward(retain_graph=True)
    else:
        loss = -criterion(out, y)
        loss.backward(retain_graph=True)
    other = out.mean()
    other.backward()
""",
}


@pytest.mark.parametrize("name", KEPT)
def test_the_network_stays_where_others_ask_it(name):
    text = ported(HEAD + DROPS + KEPT[name]).text
    body = text[text.index("for i, (x, y)") :]
    first = next(line for line in body.splitlines() if "net(x)" in line)
    assert first.startswith("    out = net(x)") or "def forward" in body[: body.index(first)]
    assert body.index("out = net(x)") < body.index("if ")
