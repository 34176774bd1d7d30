"""``torch.autograd.grad`` of what other functions and files made goes through what is recorded."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Parameter, Tensor

import mpcore_port_runtime as port
from mpcore.errors import BackendError
from mpcore_port_runtime import recorded

from .ports import FILLED, ported
from .test_recorded_losses import run_in

LOSSES = """import torch
from torch.autograd import grad as derivative
def adaptive(nll, g, last):
    a = torch.autograd.grad(nll, last, retain_graph=True)[0]
    b = torch.autograd.grad(g, last, retain_graph=True)[0]
    return torch.clamp(a.norm() / (b.norm() + 1e-4), 0.0, 1e4).detach()
def r1(images, logits):
    found = torch.autograd.grad(outputs=[logits.sum()], inputs=[images], create_graph=True)[0]
    return found.square().sum(1).mean()
def penalty(images, out):
    found = derivative(outputs=out, inputs=images, grad_outputs=torch.ones(out.size()),
                       create_graph=True, retain_graph=True, only_inputs=True)[0]
    return ((found.reshape(found.shape[0], -1).norm(2, dim=1) - 1) ** 2).mean()
def sizes(loss, net):
    found = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad],
                                allow_unused=True, retain_graph=True)
    return [float(g.abs().sum()) for g in found if g is not None]
"""
BALANCER = """import torch
class Balancer:
    def __init__(self, weights):
        self.weights = weights
    def backward(self, losses, input):
        made, total = torch.zeros_like(input), 0.0
        for name, loss in losses.items():
            found, = torch.autograd.grad(loss, [input], retain_graph=True)
            scale = self.weights[name] / (1e-12 + found.norm())
            made.add_(found, alpha=scale)
            total += scale * loss.detach()
        input.backward(made)
        return total
    def forward(self, net, x):
        return (net(x) * x).mean()
"""
CHECKPOINT = """import torch
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, length, *args):
        ctx.run, ctx.tensors, ctx.params = run, list(args[:length]), list(args[length:])
        with torch.no_grad():
            return ctx.run(*ctx.tensors)
    @staticmethod
    def backward(ctx, *grads):
        ctx.tensors = [x.detach().requires_grad_(True) for x in ctx.tensors]
        with torch.enable_grad():
            copies = [x.view_as(x) for x in ctx.tensors]
            made = ctx.run(*copies)
        found = torch.autograd.grad(made, ctx.tensors + ctx.params, grads, allow_unused=True)
        return (None, None) + found
"""
NETS = """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(2, 2)
    def forward(self, x):
        return self.last(F.leaky_relu(self.first(x), 0.1))
G = filled(Decoder())
D = filled(nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1)))
og, od = torch.optim.SGD(G.parameters(), lr=0.05), torch.optim.SGD(D.parameters(), lr=0.05)
batches = [torch.linspace(-1.0, s, 20).view(5, 4) for s in (1.0, 2.0, 3.0)]
"""
LOOPS = {
    "a weight by gradients of the last layer": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for x in batches:
    rec = G(x)
    nll, g = (rec - x).abs().mean(), -D(rec).mean()
    weight = adaptive(nll, g, G.last.weight)
    loss = nll + weight * g
    og.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(og)
    scaler.update()
    made += [loss.item(), weight.item(), *sizes(G(x).square().mean(), G)]
""",
    "penalties of what was handed in": """
for x in batches:
    real = x.detach().requires_grad_(True)
    logits, fake = D(real), D(G(x).detach())
    mixed = (0.3 * x + 0.7 * G(x)).detach().requires_grad_(True)
    out = D(mixed)
    loss = F.softplus(-logits).mean() + F.softplus(fake).mean()
    loss = loss + 5 * r1(real, logits) + 10 * penalty(mixed, out)
    od.zero_grad()
    loss.backward()
    od.step()
    made.append(loss.item())
""",
    "an object with a backward pass of its own": """
balancer = Balancer({"l1": 1.0, "l2": 2.0})
for x in batches:
    y = G(x)
    losses = {"l1": (y - x).abs().mean(), "l2": (y - x).square().mean()}
    og.zero_grad()
    made.append(balancer.backward(losses, y).item())
    og.step()
    made.append(balancer.forward(G, x).item())
""",
    "a checkpoint": """
for x in batches:
    hidden = G(x)
    out = Checkpoint.apply(lambda z: torch.tanh(G(z)), 1, hidden, *G.parameters())
    loss = out.square().mean()
    og.zero_grad()
    loss.backward()
    og.step()
    made.append(loss.item())
""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_gradients_of_what_another_file_made_are_torchs(name, tmp_path):
    head = "import torch\nimport torch.nn.functional as F\n"
    head += "from losses import adaptive, penalty, r1, sizes\nfrom balancer import Balancer\n"
    head += "from checkpoint import Checkpoint\n"
    main = FILLED.replace("import torch\n", head) + NETS + LOOPS[name]
    main += "made += [p.detach() for net in (G, D) for p in net.parameters()]\n"
    texts = {"losses.py": LOSSES, "checkpoint.py": CHECKPOINT, "main.py": main}
    texts["balancer.py"] = BALANCER
    made = []
    for side in ("torch", "port"):
        (tmp_path / side).mkdir()
        for file, text in texts.items():
            whole = ported(text).text if side == "port" else text
            (tmp_path / side / file).write_text(whole, encoding="utf-8")
        made.append(run_in(tmp_path / side, ("losses", "checkpoint", "balancer")))
    for own, other in zip(*reversed(made), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_each_of_such_lines_is_unproven():
    found = ported(LOSSES)
    assert "port.record(twice=True)" in found.text
    lines = [edit.line for edit in found.edits if "port.record() has" in edit.reason]
    assert lines == [4, 5, 8, 11, 15]
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    assert [e for e in found.edits if e.line == 8 and "LayerNorm" in e.reason]


def test_a_checkpoint_has_nothing_else_recorded():
    found = ported(CHECKPOINT)
    assert "port.record(" not in found.text
    assert [e.kind for e in found.edits if "recorded apart" in e.reason] == ["unproven"]


MOVED = """
x = batches[0]
def last(x):
    return G(x).square().mean()
def back(loss):
    loss.backward()
back(last(G(x)))
"""


def test_a_loop_that_trains_stays_in_front_of_what_is_made_of_its_networks():
    """The loop stands among the statements of the later loss, which cannot go in front of it."""
    loop = LOOPS["a checkpoint"].replace("Checkpoint.apply(lambda z: torch.tanh(G(z)), 1, ", "D(")
    text = ported(FILLED + NETS + loop.replace("hidden, *G.parameters())", "hidden)") + MOVED).text
    assert text.index("for x in batches") < text.index("def last(x)")
    assert "back(last(G(x)))" in text


@pytest.fixture
def recording():
    port.record()
    yield
    recorded.stop()


@pytest.mark.usefixtures("recording")
def test_what_torch_raises_for_is_raised():
    weight, other = (Parameter(Tensor(np.ones(3, np.float32)), name=n) for n in "ab")
    made = (weight * 2.0).sum()
    assert port.grad(made, [weight, other], allow_unused=True)[1] is None
    zeros = port.grad(made, [weight, other], materialize_grads=True)[1]
    assert zeros.asnumpy().tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(RuntimeError, match="allow_unused"):
        port.grad(made, [weight, other])
    with pytest.raises(RuntimeError, match="scalar outputs"):
        port.grad(weight * 2.0, weight)
    with pytest.raises(BackendError, match="twice=True"):
        port.grad(made, weight, create_graph=True)
    of_two = port.grad([weight.sum(), weight * 3.0], weight, [None, Tensor([1.0, 2.0, 0.0])])[0]
    assert of_two.asnumpy().tolist() == [4.0, 7.0, 1.0]


def test_gradients_come_back_inside_of_no_grad():
    weight = Parameter(Tensor(np.ones(3, np.float32)), name="a")
    with port.no_grad():
        assert not port.is_grad_enabled()
        with port.enable_grad():
            assert port.is_grad_enabled()
            found = port.loss(lambda: (weight * weight).sum(), weight)
            found.backward()
        assert not port.is_grad_enabled()
        port.set_grad_enabled(True)
        assert port.is_grad_enabled()
    assert port.is_grad_enabled()
    assert weight.grad.asnumpy().tolist() == [2.0, 2.0, 2.0]
