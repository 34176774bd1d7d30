"""Gradients of tensors that are no Parameters: attacks, saliency, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported, recorded

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
from torch.autograd import Variable
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
for p in model.parameters():
    p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
labels = torch.tensor([0, 1, 2, 2, 1, 0])
batches = [(torch.linspace(-1.0, s, 24).view(6, 4), labels) for s in (1.0, 2.0)]
eps, alpha, made = 0.3, 0.1, []
"""
TRAINED = """
    optimizer.zero_grad()
    loss = criterion(model(adv), y)
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made += [p.detach() for p in model.parameters()]
"""
ATTACKS = {
    "saliency": """
for x, y in batches:
    x.requires_grad = True
    out = model(x)
    loss = F.nll_loss(F.log_softmax(out, dim=1), y)
    model.zero_grad()
    loss.backward()
    data_grad = x.grad.data
    adv = x + eps * data_grad.sign()
    adv = torch.clamp(adv, 0, 1).detach()
""",
    "fast": """
for x, y in batches:
    delta = torch.zeros_like(x)
    delta.requires_grad = True
    for _ in range(2):
        output = model(x + delta)
        loss = F.cross_entropy(output, y)
        loss.backward()
        grad = delta.grad.detach()
        delta.data = torch.clamp(delta + alpha * torch.sign(grad), -eps, eps)
        delta.data = torch.max(torch.min(1 - x, delta.data), 0 - x)
        delta.grad.zero_()
    delta = delta.detach()
    adv = x + delta
""",
    "kept": """
delta = torch.zeros(6, 4)
for x, y in batches + batches:
    delta.requires_grad = True
    loss = F.cross_entropy(model(x + delta[:x.size(0)]), y)
    loss.backward()
    grad = delta.grad.detach()
    made.append(grad)
    delta.data = torch.clamp(delta + alpha * torch.sign(grad), -eps, eps)
    delta.data[:x.size(0)] = torch.clamp(delta[:x.size(0)], -0.2, 0.2)
    delta = delta.detach()
    made.append(delta.clone())
    loss = criterion(model(x + delta[:x.size(0)]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    adv = x
""",
    "made in front": """
for x, y in batches:
    delta = torch.full_like(x, 0.01).requires_grad_()
    adv = torch.clamp(x + delta, -1, 1)
    adv = adv * 2
    loss = F.cross_entropy(model(adv), y)
    loss.backward()
    adv = (x + alpha * delta.grad.sign()).detach()
""",
    "added up": """
for x, y in batches:
    x.requires_grad_(True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    second = model(x).pow(2).mean()
    second.backward()
    adv = (x + alpha * x.grad).detach()
    x.grad = None
""",
    "variable": """
def attack(model, x, y):
    x_pgd = Variable(x.data, requires_grad=True)
    for _ in range(3):
        opt = torch.optim.SGD([x_pgd], lr=1e-3)
        opt.zero_grad()
        with torch.enable_grad():
            loss = nn.CrossEntropyLoss()(model(x_pgd), y)
        loss.backward()
        eta = alpha * x_pgd.grad.data.sign()
        x_pgd = Variable(x_pgd.data + eta, requires_grad=True)
        eta = torch.clamp(x_pgd.data - x.data, -eps, eps)
        x_pgd = Variable(x.data + eta, requires_grad=True)
    return x_pgd.detach()
for x, y in batches:
    adv = attack(model, x, y)
""",
    "autograd.grad": """
def attack(model, x, y):
    model.eval()
    x_adv = x.detach() + 0.001 * torch.ones(x.shape).detach()
    for _ in range(3):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss = F.cross_entropy(model(x_adv), y)
        grad = torch.autograd.grad(loss, [x_adv])[0]
        x_adv = x_adv.detach() + alpha * torch.sign(grad.detach())
        x_adv = torch.min(torch.max(x_adv, x - eps), x + eps)
        x_adv = torch.clamp(x_adv, 0.0, 1.0)
    model.train()
    return x_adv
for x, y in batches:
    adv = attack(model, x, y)
""",
    "cut off": """
for x, y in batches:
    x.requires_grad_()
    hidden = model(x).pow(2)
    loss = F.cross_entropy(hidden + Variable(model(x)) + Variable(hidden).exp(), y)
    loss.backward()
    made.append(x.grad)
    adv = (x + x.grad.sign()).detach()
""",
    "trades": """
def trades_loss(model, x, y, optimizer):
    model.eval()
    x_adv = x.detach() + 0.001 * torch.ones(x.shape)
    for _ in range(2):
        x_adv.requires_grad_()
        with torch.enable_grad():
            loss_kl = F.kl_div(F.log_softmax(model(x_adv), dim=1), F.softmax(model(x), dim=1),
                               reduction="sum")
        grad = torch.autograd.grad(loss_kl, [x_adv])[0]
        x_adv = x_adv.detach() + alpha * torch.sign(grad.detach())
        x_adv = torch.min(torch.max(x_adv, x - eps), x + eps)
    model.train()
    x_adv = Variable(torch.clamp(x_adv, -1.0, 2.0), requires_grad=False)
    optimizer.zero_grad()
    logits = model(x)
    natural = F.cross_entropy(logits, y)
    robust = F.kl_div(F.log_softmax(model(x_adv), dim=1), F.softmax(logits, dim=1), reduction="sum")
    return natural + 0.1 * robust
for x, y in batches:
    optimizer.zero_grad()
    loss = trades_loss(model=model, x=x, y=y, optimizer=optimizer)
    loss.backward()
    optimizer.step()
    adv = x
""",
    "method": """
class Attack:
    def __init__(self, model):
        self.model = model
    def run(self, x, y):
        delta = torch.zeros_like(x).requires_grad_()
        loss = F.cross_entropy(self.model(x + delta), y)
        loss.backward()
        return delta.grad.detach().sign() * alpha
    def moved(self, x, y):
        return self.run(x, y) + x
attack = Attack(model)
for x, y in batches:
    adv = attack.moved(x, y)
""",
    "of two": """
for x, y in batches:
    x.requires_grad_()
    shift = torch.full((4,), 0.1, requires_grad=True)
    loss = F.cross_entropy(model(x * 2 + shift), y)
    of_x, of_shift = torch.autograd.grad(loss, (x, shift), retain_graph=False)
    made += [of_x, of_shift]
    adv = (x + alpha * of_x).detach()
""",
    "scaled": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for x, y in batches:
    x.requires_grad_()
    loss = F.cross_entropy(model(x), y)
    grad = torch.autograd.grad(scaler.scale(loss), x)[0]
    made.append(grad)
    adv = (x + alpha * grad / scaler.get_scale()).detach()
""",
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_gradients_of_inputs_are_torchs(name, tmp_path):
    found = beside(HEAD + ATTACKS[name] + TRAINED, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}
    assert "inputs=[" in found.text


def test_what_takes_no_part_is_no_input():
    """Behind ``delta.detach()`` the gradient is read no more."""
    found = ported(
        HEAD + ATTACKS["fast"].replace("adv = x + delta", "") + TRAINED.replace("adv", "x + delta")
    )
    assert found.text.count("inputs=[delta]") == 1


RECORDED = {
    "differentiated again": "g = torch.autograd.grad(loss, [x, loss], create_graph=True)[0]",
    "another weight": "g = torch.autograd.grad(loss, x, grad_outputs=torch.full((), 2.0))[0]",
    "no leaf": "g = torch.autograd.grad(loss, list(model.weights))[0]",
    "of a part": "g = torch.autograd.grad(loss, x, allow_unused=True)[0]",
}


@pytest.mark.parametrize("line", RECORDED.values(), ids=RECORDED)
def test_other_gradients_go_through_what_is_recorded(line):
    body = f"x = torch.ones(6, 4, requires_grad=True)\nloss = model(x).mean()\n{line}\n"
    found = ported(HEAD + body)
    edits = [edit for edit in found.edits if "port.record() has" in edit.reason]
    assert [(e.line, e.kind) for e in edits] == [(HEAD.count("\n") + 3, "unproven")]


OWN = """
def inner(x, y):
    out = model(x)
    F.cross_entropy(out, y).backward()
    return {}
for x, y in batches:
    optimizer.zero_grad()
    loss = inner(x, y).mean() + model(x).mean()
    loss.backward()
    optimizer.step()
"""


def test_a_loss_of_what_has_a_backward_pass_of_its_own_goes_through_what_is_recorded():
    """Run once more inside of the loss, its gradients would come behind ``zero_grad``."""
    found = ported(HEAD + OWN.format("out"))
    assert recorded(found) == [HEAD.count("\n") + 9]
    assert any("`inner` has a backward pass of its own" in edit.reason for edit in found.edits)


def test_detached_values_of_such_are_of_before(tmp_path):
    script = OWN.format("out.detach()") + "made += [p.detach() for p in model.parameters()]\n"
    found = beside(
        HEAD
        + script.replace("loss = inner(x, y).mean()", "own = inner(x, y)\n    loss = own.mean()"),
        tmp_path,
    )
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_a_gradient_of_a_loss_that_was_made_elsewhere_goes_through_what_is_recorded():
    body = "def of(loss, x):\n    x.requires_grad_()\n    return torch.autograd.grad(loss, x)[0]\n"
    found = ported(HEAD + body)
    edits = [edit for edit in found.edits if "port.record() has" in edit.reason]
    assert [(e.line, e.kind) for e in edits] == [(HEAD.count("\n") + 3, "unproven")]
