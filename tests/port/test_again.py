"""Two losses of one forward pass: what is computed again is computed of the same, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside

HEAD = """import torch
from torch import nn
def filled(into, out):
    net = nn.Linear(into, out)
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
model, aux = filled(3, 3), filled(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
opt_aux = torch.optim.SGD(aux.parameters(), lr=0.2)
batches = [torch.linspace(-1.0, s, 12).view(4, 3) for s in (1.0, 2.0, 3.0)]
made = []
"""
TAIL = """
made += [p.detach() for net in (model, aux) for p in net.parameters()]
"""
CONDITION = """
def train(use):
    for x in batches:
        output = model(x)
        loss = output.pow(2).mean()
        if use:
            content = aux(output)
            content_loss = content.mean()
        opt.zero_grad()
        opt_aux.zero_grad()
        if use:
            content_loss.backward(retain_graph=True)
        loss.backward()
        opt.step()
        opt_aux.step()
        made.append(loss.detach())
        if use:
            made.append(content_loss.detach())
train(False)
train(True)
"""
OVERWRITTEN = """
half = torch.amp.autocast("cpu", enabled=False)
for x in batches:
    y = x * 2
    with half:
        fake = model(x)
        y = y + fake
        y = y * 0.5
        d_loss = (aux(fake.detach()) - aux(y.detach())).pow(2).mean()
    opt_aux.zero_grad()
    d_loss.backward()
    opt_aux.step()
    with half:
        g_loss = (aux(fake) - aux(y)).pow(2).mean() + (fake - y).pow(2).mean()
    opt.zero_grad()
    g_loss.backward()
    opt.step()
    made += [d_loss.detach(), g_loss.detach(), y.detach()]
"""


@pytest.mark.parametrize("script", [CONDITION, OVERWRITTEN], ids=["condition", "overwritten"])
def test_two_losses_of_one_forward_pass_train_as_in_torch(script, tmp_path):
    found = beside(HEAD + script + TAIL, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}
