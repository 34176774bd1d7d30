"""Losses that are changed in place before their pass, where something else holds them."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, ops

import mpcore_port_runtime as port
from mpcore_port_runtime.refusal import PortWarning

from .ports import FILLED, NET, beside

HELD = (
    FILLED
    + NET
    + """
import torch.nn.functional as F
class Meter:
    def __init__(self):
        self.values = []
    def update(self, value):
        self.values.append(value)
class Holder:
    pass
def parts(net, x, y):
    out = net(x)
    return {"a": F.cross_entropy(out, y), "b": (out ** 2).mean()}
def logged(net, x, y):
    loss = F.cross_entropy(net(x), y)
    return loss, {"loss": loss.detach()}
net, meter, holder = Net(), Meter(), Holder()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.linspace(-1, 1, 12).view(4, 3), torch.tensor([0, 1, 1, 0])
for step in range(2):
    opt.zero_grad()
    BODY
    loss.backward()
    opt.step()
    SHOWN
made.append(net.weight)
"""
)
FORMS = {
    "dictionary": (
        "loss = F.cross_entropy(net(x), y); d = {'loss': loss}\n    loss /= 2",
        "d['loss']",
    ),
    "list": ("loss = F.cross_entropy(net(x), y); d = [loss]\n    loss *= 0.5", "d[0]"),
    "appended": (
        "loss = F.cross_entropy(net(x), y); d = []; d.append(loss)\n    loss *= 0.5",
        "d[0]",
    ),
    "three names": (
        "d = holder.last = loss = F.cross_entropy(net(x), y)\n    loss /= 2",
        "holder.last",
    ),
    "attribute": ("holder.last = loss = F.cross_entropy(net(x), y)\n    loss /= 2", "holder.last"),
    "detached": ("loss = F.cross_entropy(net(x), y); d = loss.detach()\n    loss /= 2", "d"),
    "meter": (
        "loss = F.cross_entropy(net(x), y); meter.update(loss.detach())\n    loss /= 2",
        "meter.values[-1]",
    ),
    "first of several": (
        "d = parts(net, x, y); several = [d['a'], d['b']]; loss = several[0]\n"
        "    for one in several[1:]:\n        loss += one",
        "several[0]",
    ),
    "log": (
        "d = parts(net, x, y); log = {k: v.detach() for k, v in d.items()}; loss = d['a']\n"
        "    loss += d['b'] * 0.5",
        "log['a']",
    ),
    "given with it": ("loss, d = logged(net, x, y)\n    loss /= 4", "d['loss']"),
    "twice": (
        "loss = F.cross_entropy(net(x), y); d = {'loss': loss}\n    loss /= 2\n    loss += 1.5",
        "d['loss']",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_holds_a_loss_sees_its_change(form, tmp_path):
    body, shown = FORMS[form]
    script = HELD.replace("BODY", body).replace("SHOWN", f"made.append({shown}.item())")
    found = beside(script, tmp_path)
    said = [edit for edit in found.edits if edit.rule == "shared"]
    assert said
    for edit in said:
        assert edit.kind == "exact" or "the other holder is given the values" in edit.effect


X = Tensor(np.linspace(-1, 1, 8).reshape(4, 2).astype(np.float32))
T = Tensor(np.linspace(0.1, 0.9, 8).reshape(4, 2).astype(np.float32))
Y = Tensor([0, 1, 1, 0])
FREE = {
    "cross_entropy": lambda out: ops.cross_entropy(out, Y),
    "soft labels": lambda out: ops.cross_entropy(out, T),
    "each": lambda out: ops.cross_entropy(out, Y, reduction="none"),
    "mse": lambda out: ops.mse_loss(out, T),
    "l1": lambda out: ops.l1_loss(out, T),
    "smooth l1": lambda out: ops.smooth_l1_loss(out, T, reduction="mean"),
    "bce": lambda out: ops.binary_cross_entropy(ops.sigmoid(out), T),
    "logits": lambda out: mint.nn.functional.binary_cross_entropy_with_logits(out, T),
    "kl": lambda out: ops.kl_div(ops.log_softmax(out, -1), T, reduction="batchmean"),
    "sum": lambda out: out.sum(),
    "mean": lambda out: (out * out).mean(),
    "of several": lambda out: ops.addn([out.mean(), (out * out).mean()]),
    "of two": lambda out: out.mean() + (out * out).mean(),
    "difference": lambda out: (out * out).mean() - out.mean(),
    "from one": lambda out: 1 - out.mean(),
    "negative": lambda out: -out.mean(),
    "product": lambda out: (out * out).mean() * out.exp().mean(),
    "share": lambda out: (out * out).sum() / 4,
    "share of a tensor": lambda out: (out * out).sum() / Tensor(4.0),
    "cast": lambda out: (out * out).mean().astype(ms.float16).astype(ms.float32),
    "chosen": lambda out: ops.where(Tensor(True), out.mean(), out.sum()),
    "clamped": lambda out: ops.clamp(out.sum(), min=-50.0),
    "log": lambda out: (out * out).mean().log(),
    "abs": lambda out: out.mean().abs(),
}
BOUND = {
    "quotient": lambda out: (out * out).sum() / out.exp().sum(),
    "root": lambda out: (out * out).mean().sqrt(),
    "power": lambda out: out.mean().exp(),
    "largest": lambda out: out.max(),
}


class _Net(ms.nn.Cell):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.linspace(-1, 1, 4).reshape(2, 2).astype(np.float32))

    def construct(self, x):
        return ops.matmul(x, self.w)


def _gradient(of, change):
    net, held = _Net(), []

    def forward():
        held.append(of(net(X)))
        return change(held[0]).sum()

    port.loss(forward, net).backward()
    return net.w.grad.asnumpy(), held[0].asnumpy()


@pytest.mark.parametrize("of", FREE)
def test_gradients_that_need_no_result_are_the_same(of):
    plain, before = _gradient(FREE[of], lambda loss: loss * 0.5)
    written, after = _gradient(FREE[of], lambda loss: port.changed("*=", loss, 0.5))
    np.testing.assert_allclose(written, plain, 1e-6, 1e-7)
    np.testing.assert_allclose(after, before * 0.5, 1e-6)


@pytest.mark.parametrize("of", BOUND)
def test_gradients_that_need_the_result_keep_it_and_warn(of):
    plain, before = _gradient(BOUND[of], lambda loss: loss * 0.5)
    with pytest.warns(PortWarning, match="the other holder keeps"):
        written, after = _gradient(BOUND[of], lambda loss: port.changed("*=", loss, 0.5))
    np.testing.assert_allclose(written, plain, 1e-6, 1e-7)
    np.testing.assert_allclose(after, before)
