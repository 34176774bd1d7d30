"""Gradients that a loss is made of: penalties of critics, derivatives in physics, beside torch."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
from torch import nn, autograd
import torch.nn.functional as F
from torch.autograd import Variable, grad as derivative
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-0.5, 0.6, p.numel()).view(p.shape))
    return net
D = filled(nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1)))
G = filled(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()))
optimizer = torch.optim.SGD(D.parameters(), lr=0.05)
batches = [torch.linspace(-1.0, s, 20).view(5, 4) for s in (1.0, 2.0, 3.0)]
noise = [torch.linspace(-s, 1.0, 15).view(5, 3) for s in (1.0, 2.0, 3.0)]
made = []
"""
STEP = """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
"""
END = "made += [p.detach() for p in D.parameters()]\n"
PENALTY = """
def penalty(net, real, fake):
    alpha = torch.linspace(0.0, 1.0, real.size(0)).view(-1, 1).expand_as(real)
    mixed = {mixed}
    out = net(mixed)
    {weights}
    found = autograd.grad({given})[0]
    found = found.view(found.size(0), -1)
    return ((found.norm(2, dim=1) - 1) ** 2).mean()
for real, z in zip(batches, noise):
    fake = G(z)
    loss = D(fake).mean() - D(real).mean() + 10 * penalty(D, real.data, fake.data)
"""
GIVEN = "outputs=out, inputs=mixed, create_graph=True, retain_graph=True, only_inputs=True"
MIXED = "(alpha * real + (1 - alpha) * fake).requires_grad_(True)"
SPELT = {
    "weights of ones": (
        MIXED,
        "weights = torch.ones(out.size())",
        f"{GIVEN}, grad_outputs=weights",
    ),
    "a Variable": (
        "Variable(alpha * real + (1 - alpha) * fake, requires_grad=True)",
        "weights = Variable(torch.ones(real.size(0), 1), requires_grad=False)",
        f"{GIVEN}, grad_outputs=weights",
    ),
    "ones alike": (MIXED, "pass", f"{GIVEN}, grad_outputs=torch.ones_like(out)"),
    "a sum by position": (MIXED, "pass", "out.sum(), mixed, None, True, True"),
    "lists": (
        MIXED,
        "pass",
        "outputs=[out], inputs=[mixed], grad_outputs=[torch.ones(out.size())], create_graph=True",
    ),
    "other weights": (
        MIXED,
        "weights = torch.linspace(0.5, 1.5, out.numel()).view(out.shape)",
        f"{GIVEN}, grad_outputs=weights",
    ),
}


@pytest.mark.parametrize("name", sorted(SPELT))
def test_a_penalty_of_a_critic_trains_as_torchs(name, tmp_path):
    mixed, weights, given = SPELT[name]
    script = HEAD + PENALTY.format(mixed=mixed, weights=weights, given=given) + STEP + END
    found = beside(script, tmp_path)
    assert "port.gradients(out_of, mixed)" in found.text
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]


BLOCKS = {
    "in the loop, read twice": """
for real in batches:
    x = real.clone().requires_grad_(True)
    out = D(x)
    found, = autograd.grad(outputs=out.sum(), inputs=x, create_graph=True)
    loss = 5 * found.pow(2).sum(1).mean() + F.relu(-out).mean()
""",
    "what wants a gradient is said by itself": """
for real in batches:
    x = real * 2.0
    x.requires_grad = True
    hidden = D[0](x)
    out = D[2](D[1](hidden))
    found = derivative(out, x, torch.ones_like(out), create_graph=True)[0]
    loss = found.abs().sum(1).mean() + hidden.mean()
""",
    "a loss of its own, behind another": """
for real in batches:
    loss = D(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    x = (real + 0.5).requires_grad_()
    out = D(x)
    found = autograd.grad(out, x, torch.ones(out.size()), True, True)[0]
    loss = ((found.norm(2, 1) - 1) ** 2).mean()
""",
}


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_penalties_in_a_loop(name, tmp_path):
    found = beside(HEAD + BLOCKS[name] + STEP + END, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_what_is_run_twice_is_said_to_be():
    once, twice = (
        PENALTY.format(mixed=MIXED, weights=weights, given=f"{GIVEN}, grad_outputs=weights")
        for weights in (
            "weights = torch.ones_like(out)",
            "weights = torch.ones_like(out)\n    a = out",
        )
    )
    for script, said in ((once, False), (twice, True)):
        found = ported(HEAD + script + STEP)
        (edit,) = [edit for edit in found.edits if edit.rule == "penalty"]
        assert edit.kind == "changed"
        assert "LayerNorm" in edit.effect
        assert ("move twice" in edit.effect) is said


PHYSICS = """
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = filled(nn.Sequential(nn.Linear(2, 6), nn.Sigmoid(), nn.Linear(6, 1)))
    def forward(self, x, t):
        return self.net(torch.cat([x, t], 1))
    def residual(self, x, t):
        u = self.forward(x, t)
        ones = torch.ones_like(u)
        u_t = derivative(u, t, grad_outputs=ones, retain_graph=True, create_graph=True)[0]
        u_x = derivative(u, x, grad_outputs=ones, retain_graph=True, create_graph=True)[0]
        u_xx = derivative(u_x, x, grad_outputs=torch.ones_like(u_x), create_graph=True)[0]
        return u_t + u * u_x - 0.1 * u_xx
field = Field()
optimizer = torch.optim.SGD(field.parameters(), lr=0.5)
for i in range(3):
    x = torch.linspace(-1.0, 1.0 + i, 10).view(10, 1).requires_grad_(True)
    t = torch.linspace(0.0, 1.0, 10).view(10, 1).requires_grad_(True)
    loss = field.residual(x, t).pow(2).mean() + (field(x, t) - 1.0).pow(2).mean()
"""


def test_derivatives_of_derivatives(tmp_path):
    found = beside(
        HEAD + PHYSICS + STEP + "made += [p.detach() for p in field.parameters()]\n", tmp_path
    )
    said = [edit.reason for edit in found.edits if edit.rule == "penalty"]
    assert len(said) == 3
    assert all("handed in" in reason for reason in said)


LEFT = {
    "outputs of another function": (
        "def penalty(out, x):\n"
        "    return autograd.grad(out.sum(), x, create_graph=True)[0].pow(2).mean()\n"
        "for x in batches:\n    x.requires_grad_()\n    loss = penalty(D(x), x)"
    ),
    "an unused input": (
        "for x in batches:\n    x.requires_grad_()\n    out = D(x)\n"
        "    loss = autograd.grad(out.sum(), x, create_graph=True, allow_unused=True)[0].mean()"
    ),
    "no name": (
        "for x in batches:\n    out = D(x)\n"
        "    loss = autograd.grad(out.sum(), list(D.parameters()), create_graph=True)[0].mean()"
    ),
    "changed on the way": (
        "for x in batches:\n    k = 2.0\n    x.requires_grad_()\n    out = D(x) * k\n    k = 3.0\n"
        "    loss = autograd.grad(out.sum(), x, create_graph=True)[0].mean()"
    ),
    "kept by an object": (
        "class Held: pass\nheld = Held()\nfor x in batches:\n    x.requires_grad_()\n"
        "    held.out = D(x)\n"
        "    loss = autograd.grad(held.out.sum(), x, create_graph=True)[0].mean()"
    ),
    "an input of an input": (
        "for x in batches:\n    x.requires_grad_()\n    y = x * 2.0\n    out = D(y)\n"
        "    loss = autograd.grad(out.sum(), (x, y), create_graph=True)[0].mean()"
    ),
    "made before its input": (
        "for x in batches:\n    x.requires_grad_()\n    out = D(x)\n    x = x + 1.0\n"
        "    loss = autograd.grad(out.sum(), x, create_graph=True)[0].mean()"
    ),
}


@pytest.mark.parametrize("name", sorted(LEFT))
def test_what_is_no_function_of_its_input_there_goes_through_what_is_recorded(name):
    found = ported(HEAD + LEFT[name] + STEP)
    assert "port.gradients" not in found.text
    assert "port.record(twice=True)" in found.text
    assert [e for e in found.edits if e.kind == "unproven" and "port.record() has" in e.reason]
