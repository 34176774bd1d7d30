"""Names that a script's own classes give another meaning, and rows that are no lists."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside, ported

TRAINED = """
import torch.nn.functional as F
X = torch.linspace(-1, 1, 24).view(8, 3)
Y = torch.linspace(0, 1, 16).view(8, 2)
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(3):
    out = net(X)
    LOSS
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.item())
made += list(net.parameters())
"""
LINEAR = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
    def forward(self, x):
        return self.fc(x)
"""
CLASSES = {
    "a norm of its own": (
        LINEAR
        + "    def norm(self):\n        return sum((p ** 2).sum() for p in self.parameters())\n",
        "loss = F.mse_loss(out, Y) + 0.01 * net.norm()",
    ),
    "a mixin's norm": (
        LINEAR.replace("(nn.Module)", "(nn.Module, Norms)").replace(
            "\nclass",
            "\nclass Norms:\n"
            "    def norm(self):\n"
            "        return sum((p ** 2).sum() for p in self.parameters())\n"
            "class",
        ),
        "loss = F.mse_loss(out, Y) + 0.01 * net.norm()",
    ),
    "a double of its own": (
        LINEAR + "    def double(self, x):\n        return x * 2\n",
        "loss = F.mse_loss(out, net.double(Y))",
    ),
    "a type and a std of its own": (
        LINEAR + "    def type(self):\n        return 2\n    def std(self, x):\n        return x\n",
        "loss = F.mse_loss(out, net.std(Y)) * net.type()",
    ),
    "fields of a dataclass": (
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Out:\n"
        "    logits: torch.Tensor\n"
        + LINEAR.replace("return self.fc(x)", "return Out(self.fc(x))"),
        "loss = F.mse_loss(out.logits, Y)\n    last = out",
    ),
    "a wrapper that passes names on": (
        LINEAR.replace("Net", "Inner").replace("self.fc", "self.width = 5\n        self.fc", 1)
        + "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = Inner()\n"
        "        self.fc = nn.Linear(2, 2)\n"
        "    def __getattr__(self, name):\n"
        "        try:\n"
        "            return super().__getattr__(name)\n"
        "        except AttributeError:\n"
        "            return getattr(self.inner, name)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.inner(x))\n",
        "loss = F.mse_loss(out, Y) * net.width",
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_what_a_class_calls_its_own_is_its_own(case, tmp_path):
    classes, loss = CLASSES[case]
    beside(FILLED + classes + TRAINED.replace("LOSS", loss), tmp_path)


ROWS = {
    "a generator": "nn.ModuleList(nn.Linear(2, 2) for _ in range(3))",
    "a tuple": "nn.ModuleList((nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)))",
    "a map": "nn.ModuleList(map(lambda n: nn.Linear(n, n), [2, 2, 2]))",
    "a list's end": "nn.ModuleList(nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])[1:])",
    "what a function gives": "nn.ModuleList(copies())",
}


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_modules_need_be_no_lists(row, tmp_path):
    script = (
        FILLED + "def copies():\n    for _ in range(3):\n        yield nn.Linear(2, 2)\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.rows = {ROWS[row]}\n"
        "    def forward(self, x):\n"
        "        for one in self.rows:\n"
        "            x = one(x)\n"
        "        return x\n"
        "net = filled(Net())\n"
        "made += [net(torch.ones(1, 2)), len(net.rows), len(list(net.parameters()))]\n"
    )
    beside(script, tmp_path)


@pytest.mark.parametrize("made", ["[nn.Linear(2, 2)] * n", "list(rows)", "[nn.Linear(2, 2)] + []"])
def test_what_surely_is_a_list_stays_with_mindspores(made):
    script = f"from torch import nn\ndef f(rows, n):\n    return nn.ModuleList({made})\n"
    assert "nn.CellList(" in ported(script).text


def test_parameters_of_recurrent_layers_come_in_torchs_order(tmp_path):
    layers = ("GRU(3, 4, 2, bidirectional=True)", "LSTM(3, 4, 2)", "RNN(3, 4, 2, bias=False)")
    lines = "".join(
        f"net = nn.{one}\nmade += [len(p.shape) * 100 + p.shape[-1] for p in net.parameters()]\n"
        for one in layers
    )
    beside(f"import torch\nfrom torch import nn\nmade = []\n{lines}", tmp_path)


def test_an_optimizer_that_gets_parameters_later(tmp_path):
    loop = TRAINED.replace("opt = torch.optim.SGD(net.parameters(), lr=0.1)", "").replace(
        "    out = net(X)",
        "    if i == 2:\n"
        "        net.fc.bias.requires_grad = True\n"
        "        opt.add_param_group({'params': [net.fc.bias], 'lr': 0.01})\n"
        "    out = net(X)",
    )
    begin = (
        "net = filled(Net())\n"
        "net.fc.bias.requires_grad = False\n"
        "opt = torch.optim.SGD([net.fc.weight], lr=0.1, momentum=0.9)\n"
    )
    loop = loop.replace("net = filled(Net())\n", begin).replace("LOSS", "loss = F.mse_loss(out, Y)")
    beside(FILLED + LINEAR + loop, tmp_path)


def test_sums_up_to_each_place(tmp_path):
    beside(
        "import torch\n"
        "mask = torch.tensor([[True, False, True]])\n"
        "whole = torch.tensor([[1, 2, 3]])\n"
        "made = [mask.cumsum(1), torch.cumsum(mask, dim=-1), whole.int().cumsum(dim=1)]\n"
        "made += [torch.cumsum(input=whole, dim=1), whole.cumsum(1, dtype=torch.float32)]\n"
        "made += [str(one.dtype).rpartition('.')[2].lower() == 'int64' for one in made[:4]]\n"
        "made += [whole.float().cumsum(1), mask.cumsum(1) * mask]\n",
        tmp_path,
    )


def test_a_count_of_batches_is_refused_by_its_line():
    found = ported("from torch import nn\nn = nn.BatchNorm2d(3)\nk = n.num_batches_tracked\n")
    assert [e.line for e in found.edits if e.kind == "refused"] == [3]


def test_a_line_that_goes_on_behind_a_backslash():
    ported("import torch.nn.functional as F\ny = F.mse_loss(a, \\\n    b)\n")
