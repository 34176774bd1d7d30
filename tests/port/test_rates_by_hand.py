"""Whatever a script sets in ``param_groups`` is seen by the next step of its port, as in torch."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from mpcore_port.engine import port_text
from mpcore_port.targets import load_target

torch = pytest.importorskip("torch")
ms = pytest.importorskip("mindspore")

import mpcore_port_runtime as port  # noqa: E402

TARGET = load_target("mindspore")
FORMS = """
for g in opt.param_groups: g['lr'] = 0.01
for p in opt.param_groups: p['lr'] = 0.01 * (1 + k)
opt.param_groups[0].update(lr=0.01)
opt.param_groups[1].update({'lr': 0.01, 'weight_decay': 0.2})
opt.param_groups[0]['lr'] *= 50
opt.param_groups[0]['lr'] /= 2; opt.param_groups[1]['lr'] += 0.1
opt.param_groups[0]['lr'], x = 0.1, 2
[g.update(lr=0.1) for g in opt.param_groups]
opt.param_groups[0].__setitem__('lr', 0.1)
opt.param_groups[0].setdefault('lr', 0.1)
opt.param_groups[0] |= {'lr': 0.1}
groups = opt.param_groups; groups[0]['lr'] = 0.1
for i, g in enumerate(opt.param_groups): g['lr'] = [0.1, 0.01][i]
for p, lr in zip(opt.param_groups, (0.3, 0.2)): p['lr'] = lr
last = opt.param_groups[-1]; last['lr'] = last['lr'] * 0.5 ** k
opt.param_groups[0]['weight_decay'] = 0.1 * k
setattr(opt, 'seen', [g['lr'] for g in opt.param_groups]); opt.param_groups[1]['lr'] = opt.seen[0]
""".strip().splitlines()
MAKERS = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "RMSprop": {"centered": True},
}


def walk(form, name, framework):
    """Return the weights of four steps, the form run before each but the first."""
    draw = np.random.RandomState(3)
    starts = [draw.randn(3, 2).astype(np.float32), draw.randn(4).astype(np.float32)]
    if framework is torch:
        params = [torch.nn.Parameter(torch.tensor(w)) for w in starts]
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.02}]
        opt, step = getattr(torch.optim, name)(groups, lr=0.05, **MAKERS[name]), None
    else:
        params = [ms.Parameter(ms.Tensor(w), name=f"w{k}") for k, w in enumerate(starts)]
        groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.02}]
        opt, step = getattr(port, name)(groups, lr=0.05, **MAKERS[name]), port.step
    path = []
    for k in range(4):
        if k:
            exec(form, {"opt": opt, "k": k})
        for param in params:
            grad = draw.randn(*param.shape).astype(np.float32)
            param.grad = torch.tensor(grad) if framework is torch else ms.Tensor(grad)
        opt.step() if step is None else step(opt)
        arrays = [p.detach().numpy() if framework is torch else p.asnumpy() for p in params]
        path += [array.copy() for array in arrays]
    rates = [float(group["lr"]) for group in opt.param_groups]
    return path, rates


@pytest.mark.parametrize("place", range(len(FORMS)))
def test_every_way_of_setting_a_rate_reaches_the_step(place):
    ms.runtime.launch_blocking()
    form, name = FORMS[place], list(MAKERS)[place % len(MAKERS)]
    (wanted, rates), (got, own) = walk(form, name, torch), walk(form, name, ms)
    assert own == rates
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_port_leaves_them_as_they_are(form):
    found = port_text(
        f"import torch\nopt = torch.optim.SGD(net.parameters(), 0.1)\nk = 1\n{form}\n", TARGET
    )
    wanted = [ast.unparse(node) for node in ast.parse(form).body]
    assert [ast.unparse(node) for node in ast.parse(found.text).body[-len(wanted) :]] == wanted
    assert not [edit for edit in found.edits if edit.line > 3 and edit.kind != "exact"]
