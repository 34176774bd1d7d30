"""Gradients that move inside of an expression, and states that do not fit: beside torch."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import pytest

from .ports import FILLED, beside, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """from torch import nn
net = filled(nn.Linear(3, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=False)
total, norms, clip = 0.0, [], torch.nn.utils.clip_grad_norm_
def limited(net):
    return torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
for i, x in enumerate([torch.linspace(-1.0, s, 6).view(2, 3) for s in (1.0, 2.0, 3.0)]):
    opt.zero_grad()
    with torch.autocast("cuda", enabled=False):
        loss = net(x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    LINE
    scaler.step(opt)
    scaler.update()
    made.append(loss.item())
made += [float(total)] + [float(n) for n in norms] + [p.detach() for p in net.parameters()]
"""
CALL = "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)"
LINES = {
    "in one case of two": f"norm = {CALL} if i % 2 else None",
    "added up": f"total += {CALL}",
    "behind a condition": f"i % 2 and {CALL}",
    "asserted": f"assert {CALL} < 100",
    "asked by a branch": f"if {CALL} > 1.0:\n        total += 1",
    "named in a branch's head": f"if (n := {CALL}) > 1.0:\n        norms.append(n)",
    "in a dictionary": f"log = {{'norm': {CALL}}}\n    norms.append(log['norm'])",
    "one of two names": f"n, k = {CALL}, 1\n    norms.append(n)",
    "weight by weight": "norms += [clip(p, 0.5) for p in net.parameters()]",
    "in a function's value": "norms.append(limited(net) * 2)",
}


@pytest.mark.parametrize("line", LINES)
def test_clips_inside_of_expressions(line: str, tmp_path: Path) -> None:
    beside(FILLED + LOOP.replace("LINE", LINES[line]), tmp_path)


STEPS = {
    "a step of one case": ("scaler.step(opt)\n", "scaler.step(opt) if i % 2 else None\n"),
    "a step of a list": ("scaler.step(opt)\n", "[scaler.step(one) for one in [opt]]\n"),
    "a backward pass of two cases": (
        "scaler.scale(loss).backward()",
        "scaler.scale(loss).backward() if i % 2 else loss.backward()",
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps_inside_of_expressions(case: str, tmp_path: Path) -> None:
    beside(FILLED + LOOP.replace("LINE", "pass").replace(*STEPS[case]), tmp_path)


NETS = """from torch import nn
class Net(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, n)
        self.register_buffer('centers', torch.zeros(n, 3))
        self.register_buffer('steps', torch.zeros(1))
net, other = filled(Net()), Net(2)
"""
STATES = {
    "buffers stand behind their own network's weights": (
        "made += map(ord, ' '.join(n for n in net.state_dict() if 'num_batches' not in n))\n"
    ),
    "what fits is loaded in front of the error": (
        "try:\n"
        "    other.load_state_dict(net.state_dict())\n"
        "except RuntimeError as error:\n"
        "    made += map(ord, str(error))\n"
        "made += [other.body[0].weight, other.body[1].weight]\n"
    ),
    "as many numbers in another shape do not fit": (
        "try:\n"
        "    net.load_state_dict({'body.0.weight': torch.ones(2, 3, 3)}, strict=False)\n"
        "except RuntimeError as error:\n"
        "    made += map(ord, str(error))\n"
        "made.append(net.body[0].weight)\n"
    ),
    "bare weights in a file are told by their kind": (
        "import collections, pathlib\n"
        "torch.save(net.state_dict(), FILE)\n"
        "loaded = torch.load(FILE, map_location='cpu')\n"
        "made.append(isinstance(loaded, collections.OrderedDict))\n"
        "made.append(isinstance(net.state_dict(), collections.OrderedDict))\n"
        "pathlib.Path(FILE).unlink()\n"
    ),
    "weights that two names share are loaded and saved under both": (
        "class Tied(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = nn.Embedding(5, 3)\n"
        "        self.body = nn.Linear(3, 3)\n"
        "        self.head = nn.Linear(3, 5, bias=False)\n"
        "        self.head.weight = self.table.weight\n"
        "        self.again = nn.Sequential(self.body)\n"
        "tied = Tied()\n"
        "state = {name: torch.ones_like(one) for name, one in tied.state_dict().items()}\n"
        "made += map(ord, ' '.join(sorted(state)))\n"
        "tied.load_state_dict(state)\n"
        "made += [tied.table.weight, tied.head.weight, len(list(tied.parameters()))]\n"
        "del state['head.weight']\n"
        "made += map(ord, str(tied.load_state_dict(state, strict=False).missing_keys))\n"
    ),
    "one number fills a weight": (
        "with torch.no_grad():\n"
        "    net.head.weight.copy_(torch.tensor(2.0))\n"
        "    net.steps.copy_(net.head.weight.mean())\n"
        "made += [net.head.weight, net.steps]\n"
    ),
    "a class that has methods of torch's names": (
        "class Helper:\n"
        "    @staticmethod\n"
        "    def load_state_dict(module, state, strict=False):\n"
        "        made.append(float(strict))\n"
        "        module.load_state_dict(state, strict=strict)\n"
        "    def state_dict(self, module, prefix=''):\n"
        "        return {prefix + name: one for name, one in module.state_dict().items()}\n"
        "state = Helper().state_dict(net.head, 'head.')\n"
        "made += map(ord, ' '.join(state))\n"
        "Helper.load_state_dict(net.head, {n[5:]: one for n, one in state.items()}, True)\n"
    ),
    "layers are told by names that settings give": (
        "wanted = [''.join(('Lin', 'ear'))]\n"
        "for path, m in net.named_modules():\n"
        "    made.append(float(type(m).__name__ in wanted))\n"
        "made += map(ord, ' '.join(m.__class__.__name__ for m in net.modules()))\n"
    ),
    "what misses and what is too much, in torch's words": (
        "try:\n"
        "    net.head.load_state_dict({'weight': torch.ones(3, 3), 'scale': torch.ones(1)})\n"
        "except RuntimeError as error:\n"
        "    made += map(ord, str(error))\n"
        "made.append(net.head.weight)\n"
    ),
}


WALKS = """from torch import nn
def split(model):
    few, rest = [], []
    for m in model.modules():
        if (hasattr(m, 'groups') and m.groups > 1) or m.__class__.__name__ == 'Scale':
            few += m.parameters(recurse=False)
        else:
            rest += m.parameters(recurse=False)
    return few, rest
"""


def test_settings_of_layers_that_another_file_writes(tmp_path: Path) -> None:
    net = "import torch\nfrom torch import nn\nnet = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2))\n"
    (tmp_path / "walks.py").write_text(ported(WALKS).text, encoding="utf-8")
    walks = runpy.run_path(str(tmp_path / "walks.py"))
    few, rest = walks["split"](loaded(ported(net).text, tmp_path)["net"])
    assert (len(few), len(rest)) == (2, 0)


@pytest.mark.parametrize("case", STATES)
def test_states_that_do_not_fit(case: str, tmp_path: Path) -> None:
    file = repr(str(tmp_path / "weights.pth"))
    beside(FILLED + f"FILE = {file}\n" + NETS + STATES[case], tmp_path)
