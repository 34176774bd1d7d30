"""Optimizers that a script writes itself, over torch's base of all, beside torch."""

from __future__ import annotations

import pytest
from mindspore import Parameter, Tensor, nn, ops

import mpcore_port_runtime as port

from .ports import beside, ported

HEAD = """import math
import torch
from torch import nn, optim
from torch.optim.optimizer import Optimizer, required
made = []
def filled(net):
    for p in net.parameters():
        p.data.copy_(torch.linspace(-1.0, 1.0, p.numel()).view(p.shape))
    return net
net = filled(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)))
batches = [torch.linspace(-1.0, s, 24).view(6, 4) for s in (1.0, 2.0, 3.0, 4.0)]
"""
LOOP = """
for x in batches:
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    made.append(loss.detach())
made += [p.detach() for p in net.parameters()]
"""
CLASSES = {
    "layer-wise rates": """
class LARS(optim.Optimizer):
    def __init__(self, params, lr, weight_decay=0, momentum=0.9, eta=0.001, skip=None):
        defaults = dict(lr=lr, weight_decay=weight_decay, momentum=momentum, eta=eta, skip=skip)
        super().__init__(params, defaults)
    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g['params']:
                dp = p.grad
                if dp is None:
                    continue
                if g['skip'] is None or not g['skip'](p):
                    dp = dp.add(p, alpha=g['weight_decay'])
                    norm, other = torch.norm(p), torch.norm(dp)
                    one = torch.ones_like(norm)
                    q = torch.where(norm > 0.0, torch.where(
                        other > 0, (g['eta'] * norm / other), one), one)
                    dp = dp.mul(q)
                state = self.state[p]
                if 'mu' not in state:
                    state['mu'] = torch.zeros_like(p)
                mu = state['mu']
                mu.mul_(g['momentum']).add_(dp)
                p.add_(mu, alpha=-g['lr'])
optimizer = LARS([{'params': [p for p in net.parameters() if p.ndim > 1]},
                  {'params': [p for p in net.parameters() if p.ndim == 1], 'lr': 0.2}],
                 lr=0.5, weight_decay=1e-2, eta=0.1, skip=lambda p: p.ndim == 1)
""",
    "torch's old order": """
class Old(Optimizer):
    def __init__(self, params, lr=required, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01):
        if lr is not required and lr < 0.0:
            raise ValueError("lr")
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super(Old, self).__init__(params, defaults)
    def __setstate__(self, state):
        super(Old, self).__setstate__(state)
    def step(self, closure=None):
        loss = None
        if closure is not None:
            loss = closure()
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is None:
                    continue
                grad = p.grad.data.float()
                if grad.is_sparse:
                    raise RuntimeError('no sparse gradients')
                p_data_fp32 = p.data.float()
                state = self.state[p]
                if len(state) == 0:
                    state['step'] = 0
                    state['exp_avg'] = torch.zeros_like(p_data_fp32)
                    state['exp_avg_sq'] = torch.zeros_like(p_data_fp32)
                    state['largest'] = torch.zeros_like(p.data)
                exp_avg, exp_avg_sq = state['exp_avg'], state['exp_avg_sq']
                beta1, beta2 = group['betas']
                state['step'] += 1
                exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                torch.max(state['largest'], exp_avg_sq, out=state['largest'])
                denom = state['largest'].sqrt().add_(group['eps'])
                step_size = group['lr'] * math.sqrt(1 - beta2 ** state['step'])
                if group['weight_decay'] != 0:
                    p_data_fp32.add_(p_data_fp32, alpha=-group['weight_decay'] * group['lr'])
                p_data_fp32.addcdiv_(exp_avg, denom, value=-step_size)
                p.data.copy_(p_data_fp32)
        return loss
optimizer = Old(net.parameters(), lr=0.1)
""",
    "momentum that is kept as it was": """
class Sgd(Optimizer):
    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d_p = p.grad
                param_state = self.state[p]
                if "momentum_buffer" not in param_state:
                    buf = param_state["momentum_buffer"] = torch.clone(d_p).detach()
                    param_state["start"] = torch.empty_like(p)
                    param_state["start"].copy_(p)
                else:
                    buf = param_state["momentum_buffer"]
                    buf.mul_(group["momentum"]).add_(d_p)
                d_p.add_(buf, alpha=0.5)
                p.sub_(d_p * group["lr"])
                p.lerp_(param_state["start"], 0.1)
optimizer = Sgd(net.parameters(), lr=0.05)
""",
}


@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES)
def test_an_optimizer_of_the_scripts_own_trains_as_torchs_does(made, tmp_path):
    found = beside(HEAD + made + LOOP, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}


SHARP = """
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        defaults = dict(rho=rho, **kwargs)
        super(SAM, self).__init__(params, defaults)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(torch.stack([
            p.grad.norm(p=2) for group in self.param_groups for p in group["params"]
            if p.grad is not None]), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                e_w = p.grad * scale.to(p)
                p.add_(e_w)
                self.state[p]["e_w"] = e_w
        if zero_grad:
            self.zero_grad()
    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.sub_(self.state[p]["e_w"])
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()
optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for x in batches:
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.first_step(zero_grad=True)
    net(x).pow(2).mean().backward()
    optimizer.second_step(zero_grad=True)
    made.append(loss.detach())
made += [p.detach() for p in net.parameters()]
"""


def test_an_optimizer_around_another_one_trains_as_torchs_does(tmp_path):
    beside(HEAD + SHARP, tmp_path)


def test_its_rate_follows_a_schedule(tmp_path):
    schedule = "scheduler = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)\n"
    loop = LOOP.replace("    optimizer.step()\n", "    optimizer.step()\n    scheduler.step()\n")
    beside(HEAD + CLASSES["layer-wise rates"] + schedule + loop, tmp_path)


def test_an_optimizer_made_of_adam_is_refused_by_its_line():
    script = "from torch import optim\nclass Mine(optim.Adam):\n    def step(self):\n        pass\n"
    found = ported(script)
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [2]


PARTS = {
    "a part": "p[:2].add_(1.0)",
    "a view": "q = p.view(-1)\n                q.add_(1.0)",
}


@pytest.mark.parametrize("line", PARTS.values(), ids=PARTS)
def test_a_part_that_a_step_changes_is_no_whole_tensor(line):
    script = (
        "import torch\nclass Mine(torch.optim.Optimizer):\n    def step(self):\n"
        "        for g in self.param_groups:\n            for p in g['params']:\n"
        f"                {line}\n"
    )
    assert "port.put(q" not in ported(script).text
    assert "port.put(p[" not in ported(script).text


class _Plain(port.OwnOptimizer):
    def __init__(self, params, lr=0.1, skip=None):
        super().__init__(params, {"lr": lr, "skip": skip})

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.state[param]["sum"] = self.state[param].get("sum", 0.0) + param.grad
                    port.put(param, param - group["lr"] * param.grad)


def test_its_state_goes_into_a_checkpoint_and_back(tmp_path):
    net = nn.Dense(2, 1)
    first = _Plain(port.parameters(net), skip=lambda param: False)
    assert first([ops.ones_like(param) for param in first.parameters])
    assert all(param.grad is None for param in first.parameters)
    port.save({"opt": port.state_dict(first)}, tmp_path / "opt.pt")
    second = _Plain(port.parameters(net), lr=5.0, skip=len)
    port.load_state_dict(second, port.load(tmp_path / "opt.pt")["opt"])
    assert second.param_groups[0]["lr"] == 0.1
    assert second.param_groups[0]["skip"] is len
    assert (second.state[net.weight]["sum"].asnumpy() == 1.0).all()


def test_groups_are_checked():
    weight = Parameter(Tensor([1.0]), name="weight")
    with pytest.raises(TypeError):
        _Plain(weight)
    with pytest.raises(ValueError, match="empty"):
        _Plain([])
    with pytest.raises(ValueError, match="one group"):
        _Plain([{"params": [weight]}, {"params": [weight]}])
    with pytest.raises(ValueError, match="`lr`"):
        _Plain([weight], lr=port.required)


def test_a_tensor_that_got_a_parameters_values_keeps_them():
    weight = Parameter(Tensor([1.0, 2.0]), name="weight")
    kept = Tensor([0.0, 0.0])
    port.put(kept, weight)
    ops.assign(weight, Tensor([7.0, 8.0]))
    assert kept.asnumpy().tolist() == [1.0, 2.0]


def test_a_small_divisor_is_divided_by(tmp_path):
    lines = "x = torch.ones(3)\ny, z = torch.ones(3), torch.full((3,), 1e-7)\n"
    lines += "made += [x.addcdiv(y, z + 1e-8, value=-0.5), torch.addcdiv(x, y, z)]\n"
    beside(HEAD + lines, tmp_path)
