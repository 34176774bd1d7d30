"""Derivatives of derivatives through views, and backward passes that take a factor."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor, mint, ops

import mpcore_port_runtime as port

from .ports import beside, ported

PENALTY = """
import torch
import torch.nn.functional as F
from torch import nn
made = []
def filled(*size):
    values = torch.arange(float(torch.tensor(size).prod())) * 0.37
    return nn.Parameter(torch.sin(values.view(*size)) * 0.5)
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.w, self.v = filled(4, 1, 3, 3), filled(6, 16), filled(6)
    def forward(self, x):
        h = F.leaky_relu(F.conv2d(x, self.conv), 0.2)
        {body}
def penalty(net, real, fake):
    mixed = (0.3 * real + 0.7 * fake).requires_grad_(True)
    out = net(mixed)
    grads = torch.autograd.grad(outputs=out, inputs=mixed, grad_outputs=torch.ones_like(out),
                                create_graph=True, retain_graph=True, only_inputs=True)[0]
    return ((grads.view(grads.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()
net = Critic()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(2):
    real = torch.cos(torch.arange(48.0) * (i + 1)).view(3, 1, 4, 4)
    fake = torch.sin(torch.arange(48.0) * 0.7).view(3, 1, 4, 4)
    optimizer.zero_grad()
    loss = penalty(net, real, fake)
    loss.backward()
    optimizer.step()
    made.append(loss)
made += [*net.parameters()]
"""
BODIES = {
    "one number times": "return (h.flatten(1) * h.mean()).mean(1) + h.sum() * 0.01",
    "another rank": "return (h.flatten(1) @ self.w.t() * self.v + self.v.mean()).tanh().sum(1)",
    "batches of products": (
        "t = h.view(3, 4, 4)\n        t = torch.matmul(t, t.transpose(1, 2)).tanh() @ t\n"
        "        return torch.bmm(t, t).mean((1, 2))"
    ),
    "joined along the first axis": (
        "t = torch.cat([h, h.tanh()], 0).flatten(1)\n        t = (t @ self.w.t()).tanh()\n"
        "        return t[:3, 0] + t[3:, 1]"
    ),
    "attention": (
        "t = h.view(3, 4, 4)\n        a = torch.softmax(t @ t.transpose(-2, -1), dim=-1)\n"
        "        return F.log_softmax((a @ t).flatten(1) @ self.w.t(), dim=1)[:, 0]"
    ),
    "norms and products": (
        "t = h.flatten(1) @ self.w.t()\n"
        "        return torch.linalg.norm(t, dim=1) + torch.prod(t, 1) + torch.pow(t, 3).sum(1)"
    ),
    "pools and pictures": (
        "t = F.avg_pool2d(F.interpolate(h.tanh(), scale_factor=2, mode='nearest'), 2, stride=1)\n"
        "        t = F.adaptive_avg_pool2d(F.pad(t, (1, 1, 1, 1)), 2)\n"
        "        return F.linear(t.flatten(1), self.w).tanh().sum(1)"
    ),
    "a view": "return F.linear(h.view(h.size(0), -1), self.w).view(-1)",
    "reshape, a product": "return (torch.tanh(h.reshape(3, -1) @ self.w.t()) * self.v).sum(1)",
    "flatten": "return torch.matmul(F.linear(h.flatten(1), self.w), self.v.unsqueeze(1))",
    "transposed": (
        "t = h.permute(0, 2, 3, 1).contiguous().view(3, -1)\n        return F.linear(t, self.w)"
    ),
    "a mean": "return F.linear(h.mean(3).view(3, -1).repeat(1, 2), self.w).squeeze()",
    "stacked": (
        "t = torch.stack([h[:, i].view(3, -1) for i in range(4)], dim=1)\n"
        "        return F.linear(t.view(3, 16), self.w)[:, 0]"
    ),
    "parts": (
        "a, b = h.chunk(2, 1)\n        t = torch.cat([b, a], 1)\n"
        "        return F.linear(t.view(3, 16), self.w)"
    ),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_penalty_reaches_weights_behind_views(body, tmp_path):
    assert "port.gradients(" in beside(PENALTY.replace("{body}", body), tmp_path).text


def test_views_are_mindspores_own_again_behind_a_gradient():
    before = [Tensor.view, ops.reshape, mint.matmul, "reshape" in Tensor.__dict__]
    found = port.gradients(lambda x: (x.view(-1) * 2).sum(), Tensor(np.ones((2, 2), np.float32)))
    assert found[0].asnumpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert [Tensor.view, ops.reshape, mint.matmul, "reshape" in Tensor.__dict__] == before


WEIGHTED = """import torch
from torch import nn
made = []
net = nn.Linear(3, 2)
for p in net.parameters():
    p.data.fill_(0.5)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
one = torch.tensor(1.0)
for i in range(2):
    x = torch.ones(4, 3) * (i + 1)
    net.zero_grad()
    a = net(x).mean()
    a.backward(one * -1)
    b = (net(x) ** 2).mean()
    b.backward(gradient=one)
    c = net(x) ** 2
    c.backward(torch.ones_like(c), retain_graph=True)
    d = net(x).mean(1)
    d.backward(torch.ones(d.size()) * 0.5)
    opt.step()
    made += [a, b, c, d]
made += [*net.parameters()]
"""


def test_a_loss_is_multiplied_by_what_its_backward_pass_takes(tmp_path):
    found = beside(WEIGHTED, tmp_path)
    said = [edit for edit in found.edits if "multiplied by one number" in edit.reason]
    assert [edit.kind for edit in said] == ["unproven"] * 4


def test_other_weights_raise_and_graphs_of_gradients_are_refused():
    param = port.ParameterList([Tensor(np.ones(2, np.float32))])
    weight = param.trainable_params()[0]
    loss = port.loss(lambda: weight * 2, param)
    with pytest.raises(NotImplementedError, match="must be one number"):
        loss.backward(Tensor(np.array([1.0, 2.0], np.float32)))
    with pytest.raises(port.training.BackendError, match="`gradient` must be given"):
        loss.backward()
    script = WEIGHTED.replace("a.backward(one * -1)", "a.backward(create_graph=True)")
    assert [e.line for e in ported(script).edits if e.kind == "refused"] == [13]
