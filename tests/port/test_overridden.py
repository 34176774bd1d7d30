"""Methods of torch's Module that a script's class has anew, and steps whose branches clip."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside, loaded, ported

NET = """
import torch.nn.functional as F
X = torch.linspace(-1, 1, 24).view(8, 3)
Y = torch.linspace(0, 1, 16).view(8, 2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.bn = nn.BatchNorm1d(2)
    def forward(self, x):
        return self.bn(self.fc(x))
"""
TRAINED = """
net = filled(MADE)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    opt.zero_grad()
    loss = F.mse_loss(net(X), Y)
    loss.backward()
    opt.step()
    made.append(loss.item())
step()
for i in range(2):
    net.train()
    step()
made += [p.detach().clone() for p in net.parameters()]
net.eval()
made += [net(X), net.training]
"""
FROZEN = """
    def train(self, mode=True):
        super().train(mode)
        self.bn.eval()
        return self
"""
OVERRIDDEN = {
    "a norm that stays in evaluation mode": (FROZEN, "Net()"),
    "in old words, by a loop": (
        "    def train(self, mode=True):\n"
        "        super(Net, self).train(mode)\n"
        "        for m in self.modules():\n"
        "            if isinstance(m, nn.BatchNorm1d):\n"
        "                m.eval()\n",
        "Net()",
    ),
    "inside of another network": (FROZEN, "nn.Sequential(Net(), nn.Identity())"),
    "of a class in between": (
        FROZEN + "class Heir(Net):\n"
        "    def train(self, mode=True):\n"
        "        return super().train(mode)\n",
        "Heir()",
    ),
    "parameters of its own": (
        "    def parameters(self, recurse=True):\n"
        "        for n, p in super().named_parameters():\n"
        "            if 'fc' in n:\n"
        "                yield p\n",
        "Net()",
    ),
    "a part by super()": (
        "class Heir(Net):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        super(Heir, self).add_module('last', nn.Linear(2, 2))\n"
        "    def forward(self, x):\n"
        "        return self.last(super().forward(x))\n",
        "Heir()",
    ),
    "its own way to a device": (
        "    def to(self, *args, **kwargs):\n"
        "        self.moved = True\n"
        "        return super().to(*args, **kwargs)\n"
        "def moved():\n"
        "    net = Net()\n"
        "    net = net.to('cpu')\n"
        "    made.append(net.moved)\n"
        "    return net\n",
        "moved()",
    ),
}


@pytest.mark.parametrize("case", OVERRIDDEN)
def test_a_method_of_its_own_runs(case, tmp_path):
    body, made = OVERRIDDEN[case]
    beside(FILLED + NET + body + TRAINED.replace("MADE", made), tmp_path)


def test_a_state_of_its_own(tmp_path):
    body = (
        "    def state_dict(self, *args, **kwargs):\n"
        "        held = super().state_dict(*args, **kwargs)\n"
        "        return {k: v for k, v in held.items() if 'fc' in k}\n"
        "    def load_state_dict(self, state, strict=True):\n"
        "        return super().load_state_dict(state, strict=False)\n"
        "net = filled(Net())\n"
        "state = net.state_dict()\n"
        "other = Net()\n"
        "other.load_state_dict(state)\n"
        "made += [len(state), state['fc.weight'], other.fc.weight]\n"
        "for value in net.state_dict().values():\n"
        "    value.mul_(2)\n"
        "made += [p.sum() for p in net.parameters()]\n"
    )
    beside(FILLED + NET + body, tmp_path)


def test_an_eval_of_its_own_is_said_by_its_line():
    found = ported(f"{FILLED}{NET}    def eval(self):\n        return super().eval()\n")
    assert any("without this method" in edit.reason for edit in found.edits)


@pytest.mark.parametrize("given", ["args", "cfg", "[1, 2]", "3"])
def test_what_trains_by_settings_is_asked_when_it_runs(given, tmp_path):
    script = (
        "import torch\nfrom learning import make\n"
        "def run(args, cfg):\n    algorithm = make(args)\n"
        f"    return algorithm.train({given})\n"
    )
    names = loaded(ported(script).text.replace("from learning import make", ""), tmp_path)

    class Algorithm:
        def train(self, asked):
            return asked

    names["run"].__globals__["make"] = lambda _: Algorithm()
    assert names["run"](5, 5) in (5, 3, [1, 2])


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("unscaled", ["", "        scaler.unscale_(opt)\n"])
def test_a_branch_that_clips_what_is_scaled(amp, unscaled, tmp_path):
    script = (
        "net = filled(nn.Linear(3, 2))\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=64.0)\n"
        f"amp = {amp}\n"
        "for i in range(3):\n"
        "    loss = F.mse_loss(net(X), Y)\n"
        "    if amp:\n"
        "        scaler.scale(loss).backward()\n"
        f"{unscaled}"
        "        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n"
        "        scaler.step(opt)\n"
        "        scaler.update()\n"
        "    else:\n"
        "        loss.backward()\n"
        "        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n"
        "        opt.step()\n"
        "    net.zero_grad()\n"
        "    made.append(loss.item())\n"
        "made += [p.detach().clone() for p in net.parameters()]\n"
    )
    beside(FILLED + NET + script, tmp_path)


def test_a_question_about_the_version_of_torchvision_costs_no_file(tmp_path):
    script = (
        "import torchvision\n"
        "old = float(torchvision.__version__.split('.')[1]) < 7\n"
        "made = [1.0 if old else 2.0, float(torchvision.__version__ != '')]\n"
    )
    found = ported(script)
    assert loaded(found.text, tmp_path)["made"] == [2.0, 1.0]
    assert {edit.kind for edit in found.edits} <= {"exact", "changed"}
