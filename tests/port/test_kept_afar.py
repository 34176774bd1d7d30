"""Tensors that are changed by ``+=`` through a name, and kept by what outlives the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path

RUN = """
net = filled(nn.Linear(3, 2))
opt = {made}
x = torch.linspace(-1.0, 1.0, 6).view(2, 3)
for _ in range(4):
    loss = (net(x) - 1).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += [net.weight, net.bias]
"""
STATES = """
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.1, betas=(0.9, 0.99)))
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                m, v = state["m"], state["v"]
                state["step"] += 1
                m *= b1; m += (1 - b1) * p.grad
                v *= b2
                v += (1 - b2) * p.grad ** 2
                root = v.sqrt()
                root += 1e-8
                p -= group["lr"] * m / root
"""
NESTED = """
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "momentum": 0.9})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["buf"] = torch.zeros_like(p.data)
                self.state[p]["avg"] = p.data.clone()
    def average(self, p):
        avg = self.state[p]["avg"]
        avg += (p.data - avg) / 4
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad.data
                g += 1e-3 * p.data
                buf = self.state[p]["buf"]
                buf *= group["momentum"]
                buf += g
                d = p.data
                d -= group["lr"] * buf
                self.average(p)
"""
LISTS = """
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.01, betas=(0.9, 0.99)))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            ps, gs, ms = [], [], []
            for p in group["params"]:
                ps.append(p)
                gs.append(p.grad)
                ms.append(self.state[p].setdefault("exp_avg", torch.zeros_like(p)))
            for p, g, m in zip(ps, gs, ms):
                p *= 1 - group["lr"] * 0.1
                u = m * group["betas"][0]
                u += g * (1 - group["betas"][0])
                p -= group["lr"] * u.sign()
                m *= group["betas"][1]
                m += g * (1 - group["betas"][1])
"""
PLAIN = """
class Own:
    def __init__(self, named):
        self.named = dict(named)
        self.bufs = {n: {"m": torch.zeros_like(p), "n": 0} for n, p in self.named.items()}
    def zero_grad(self):
        for p in self.named.values():
            if p.grad is not None:
                p.grad.zero_()
    @torch.no_grad()
    def step(self):
        for n, p in self.named.items():
            b = self.bufs[n]["m"]
            c = self.bufs[n]["n"]
            c += 1
            self.bufs[n]["n"] = c
            b *= 0.9
            b += p.grad
            p -= 0.1 * b
            made.append(c)
"""
LOOKAHEAD = """
from collections import defaultdict
class Ahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k=2):
        self.optimizer, self.k = optimizer, k
        self.param_groups = self.optimizer.param_groups
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0
    def update(self, group):
        for fast in group["params"]:
            held = self.state[fast]
            if "slow" not in held:
                held["slow"] = torch.zeros_like(fast.data)
                held["slow"].copy_(fast.data)
            slow = held["slow"]
            slow += (fast.data - slow) * 0.5
            fast.data.copy_(slow)
    def step(self, closure=None):
        self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                self.update(group)
            group["counter"] = (group["counter"] + 1) % self.k
    def zero_grad(self):
        self.optimizer.zero_grad()
"""
HOOKS = """
from collections import defaultdict
net = filled(nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
stats = defaultdict(lambda: {"sum": torch.zeros(4), "n": 0})
def hook(module, given, out):
    kept = stats["a"]
    total = kept["sum"]
    total += out.detach().mean(0)
    kept["n"] += 1
net[0].register_forward_hook(hook)
for k in range(3):
    net(torch.linspace(-1.0, 1.0, 6).view(2, 3) * k)
made += [stats["a"]["sum"], stats["a"]["n"]]
"""
WRAPPED = "Ahead(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))"


@pytest.mark.parametrize(
    ("optimizer", "made"),
    [
        (STATES, "Own(net.parameters())"),
        (NESTED, "Own(net.parameters())"),
        (LISTS, "Own(net.parameters())"),
        (PLAIN, "Own(net.named_parameters())"),
        (LOOKAHEAD, WRAPPED),
    ],
    ids=["states", "nested", "lists", "plain", "lookahead"],
)
def test_what_a_step_changes_is_what_the_state_holds(
    tmp_path: Path, optimizer: str, made: str
) -> None:
    beside(FILLED + optimizer + RUN.format(made=made), tmp_path)


def test_a_hook_adds_to_what_a_dictionary_of_the_file_holds(tmp_path: Path) -> None:
    beside(FILLED + HOOKS, tmp_path)


def test_entries_of_states_are_no_places_of_tensors(tmp_path: Path) -> None:
    text = beside(FILLED + STATES + RUN.format(made="Own(net.parameters())"), tmp_path).text
    assert "state = self.state[p]\n" in text
    assert "root += 1e-8" in text


ONE_LINE = """
held = {"x": torch.ones(2), "y": torch.ones(2)}
for k, v in held.items(): v -= 0.5
made.append(held["x"])
class Own(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, dict(lr=0.1))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]: p -= group["lr"] * p.grad
"""


def test_bodies_on_the_line_of_their_loop(tmp_path: Path) -> None:
    beside(FILLED + ONE_LINE + RUN.format(made="Own(net.parameters())"), tmp_path)
