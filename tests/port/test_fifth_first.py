"""Faults that readers found at first sight: states in a step, clips, norms of own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options

from .ports import FILLED, NET, TARGET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path


AHEAD = f"""{FILLED}
from torch.optim import Optimizer
{NET}
class Ahead(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))
        self.n = 0
    def step(self, closure=None):
        self.n += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p.data)
                    state["slow"] = p.data.clone()
                buf = state["buf"]
                buf *= 0.9
                buf += p.grad.data
                p.data.add_(buf, alpha=-group["lr"])
                if self.n % 2 == 0:
                    slow = self.state[p]["slow"]
                    slow += (p.data - slow) * 0.5
                    p.data.copy_(slow)
                if self.n % 3 == 0:
                    for key, value in state.items():
                        value *= 0.7
net = Net()
opt = Ahead(net.parameters())
for i in range(7):
    opt.zero_grad()
    loss = (net(torch.ones(2, 3) * (i + 1)) ** 2).sum() * 0.01
    loss.backward()
    opt.step()
    made.append(net.weight.detach().clone())
"""


def test_states_of_own_steps_keep_what_changes_them(tmp_path: Path) -> None:
    beside(AHEAD, tmp_path)


CLIPPED = f"""{FILLED}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 6).reshape(3, 2))
        self.bias = nn.Parameter(torch.zeros(2))
    def forward(self, x):
        return x @ self.weight + self.bias
def decays(name):
    return name != "bias"
skip = ("bias", "scale")
net = Net()
{{groups}}
opt = torch.optim.SGD(groups, lr=0.1)
for i in range(4):
    net.zero_grad()
    loss = (net(torch.ones(2, 3) * (i + 1)) ** 2).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    made.append(net.weight.detach().clone())
    made.append(net.bias.detach().clone())
"""
NAMED = "named = net.named_parameters()\n"
TWO = """groups = [{"params": [p for n, p in %s if decays(n)], "weight_decay": 0.1},
          {"params": [p for n, p in %s if not decays(n)]}]"""
FRESH = "net.named_parameters()"
ALL = {
    "fresh calls": TWO % (FRESH, FRESH),
    "a list of a generator": "named = list(net.named_parameters())\n" + TWO % ("named", "named"),
    "any and all": f"""groups = [
    dict(params=[p for n, p in {FRESH} if not any(s in n for s in skip) and p.requires_grad]),
    dict(params=[p for n, p in {FRESH} if any(s in n for s in skip) and p.requires_grad])]""",
    "no any": f"""a = [p for n, p in {FRESH} if all(s not in n for s in skip)]
b = [p for n, p in {FRESH} if any(s in n for s in skip)]
groups = [dict(params=a), dict(params=b)]""",
    "by size": """groups = [dict(params=[p for p in net.parameters() if p.dim() >= 2]),
          dict(params=[w for w in net.parameters() if w.dim() < 2])]""",
    "what learns": "groups = filter(lambda q: q.requires_grad, net.parameters())",
    "starred": "groups = [*net.parameters()]",
}


@pytest.mark.parametrize("groups", ALL.values(), ids=ALL)
def test_groups_that_hold_all_are_clipped_as_one(groups: str, tmp_path: Path) -> None:
    found = beside(CLIPPED.format(groups=groups), tmp_path)
    assert "clip_by_global_norm" in found.text
    assert not [edit for edit in found.edits if "the norm is another" in edit.effect]


def test_groups_of_a_generator_that_is_used_up_keep_torchs_form(tmp_path: Path) -> None:
    found = beside(CLIPPED.format(groups=NAMED + TWO % ("named", "named")), tmp_path)
    assert "clip_by_global_norm" not in found.text


@pytest.mark.parametrize(
    "kept", ["decays(n)", "n in skip", "p.dim() > 1"], ids=["own", "names", "sizes"]
)
def test_groups_that_hold_a_part_perhaps_are_named(kept: str) -> None:
    groups = f"groups = [p for n, p in {FRESH} if {kept}]"
    found = ported(CLIPPED.format(groups=groups))
    assert [edit for edit in found.edits if "the norm is another" in edit.effect]


PARTS = {
    "by names": (f"[p for n, p in {FRESH} if n in skip]", False),
    "with gradients": ("[p for p in net.parameters() if p.grad is not None]", True),
}


@pytest.mark.parametrize(("clipped", "is_all"), PARTS.values(), ids=PARTS)
def test_clips_of_a_part_clip_that_part(clipped: str, is_all: bool, tmp_path: Path) -> None:
    script = CLIPPED.format(groups="groups = net.parameters()")
    found = beside(script.replace("norm_(net.parameters()", f"norm_({clipped}"), tmp_path)
    assert ("clip_by_global_norm" in found.text) is is_all


OWN_NORMS = f"""{FILLED}
from collections import defaultdict
class Scaler:
    def norm(self, x, by=2.0):
        return x / by
class Along:
    def norm(self, x, dim=0):
        return x.sum(dim=dim)
class Bare:
    def norm(self):
        return torch.ones(2)
def run(table, name, x):
    return table[name].norm(x)
def along(table, x):
    return table["along"].norm(x, dim=1)
def by(table, x):
    return table["scaler"].norm(x, 4.0)
def bare(one):
    return one.norm()
table = dict(scaler=Scaler(), along=Along())
x = torch.arange(6.0).reshape(2, 3)
made += [run(table, "scaler", x), run(table, "along", x), along(table, x), by(table, x)]
made += [bare(Bare()), bare(x), run(dict(x=x), "x", 1)]
"""


def test_norms_of_own_objects_are_their_own(tmp_path: Path) -> None:
    assert "port.norm" in beside(OWN_NORMS, tmp_path).text


ASKED = f"""{FILLED}
def numbers(x):
    if hasattr(x, "detach"):
        x = x.detach()
    return x * 2
def learns(x):
    return 1.0 if hasattr(x, "grad_fn") else 0.0
class Own:
    grad = None
class Other:
    pass
def has_grad(x):
    return 1.0 if hasattr(x, "grad") else 0.0
net = filled(nn.Linear(3, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    loss = net(torch.ones(2, 3) * i).sum()
    if hasattr(loss, "grad_fn"):
        loss.backward()
        opt.step()
    made.append(loss.detach())
made += [numbers(loss), numbers(3.0), learns(torch.ones(2)), learns(2.0)]
made += [has_grad(Own()), has_grad(Other()), has_grad(net.weight), has_grad(1)]
"""


def test_what_tensors_have_is_asked_as_of_torchs(tmp_path: Path) -> None:
    beside(ASKED, tmp_path)


def test_what_made_a_tensor_is_unproven_where_it_may_be_none() -> None:
    found = ported("import torch\ndef f(x):\n    return getattr(x, 'grad_fn', None)\n")
    assert [edit.line for edit in found.edits if edit.kind == "unproven"] == [3]


AFAR = """import torch
from torch import nn
from trainer_of_ours import Trainer
class Mine(Trainer):
    def step(self, x):
        self.opt.zero_grad()
        loss = self.net(x).sum()
        self.{word}(loss)
"""
BASE = """class Trainer:
    def _backward(self, loss):
        loss.backward()
        self.opt.step()
"""


@pytest.mark.parametrize(
    ("word", "is_told"),
    [("_backward", True), ("backward_and_step", True), ("backprop", True), ("background", False)],
)
def test_backward_passes_of_another_files_base_are_named(word: str, is_told: bool) -> None:
    found = ported(AFAR.format(word=word))
    told = [edit.line for edit in found.edits if "is in another file" in edit.reason]
    assert told == ([8] if is_told else [])


def test_backward_passes_of_a_base_that_is_ported_along_are_not(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AFAR.format(word="_backward"), encoding="utf-8")
    (tmp_path / "trainer_of_ours.py").write_text(BASE, encoding="utf-8")
    result = port_tree(walk(tmp_path), TARGET, Options())
    edits = [edit for file in result.files for edit in file.edits]
    assert not [edit for edit in edits if "is in another file" in edit.reason]
