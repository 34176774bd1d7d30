"""An optimizer that another file is handed keeps to what it may set; waits, names of a star."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HANDED = {
    "to a function": ("from other import adjust\n", "adjust(opt, 3)\n", True),
    "by its name": ("from other import adjust\n", "adjust(n=1, optimizer=opt)\n", True),
    "to a schedule": ("from other import Warm\n", "schedule = Warm(opt, 1)\n", True),
    "through a function": (
        "from other import adjust\ndef f(o):\n    adjust(o)\n",
        "f(opt)\n",
        True,
    ),
    "by a class": (
        "from other import adjust\nclass T:\n    def __init__(self, o):\n        self.o = o\n"
        "    def go(self):\n        adjust(self.o)\n",
        "T(opt).go()\n",
        True,
    ),
    "to nobody": ("", "print(opt, len(opt.state_dict()))\n", False),
    "to a function of the file": ("def f(o, n):\n    o.zero_grad()\n", "f(opt, 3)\n", False),
    "to torch's schedule": (
        "",
        "schedule = torch.optim.lr_scheduler.StepLR(opt, 1)\nschedule.step()\n",
        False,
    ),
}
LOOP = """for x in range(3):
    opt.zero_grad()
    net(torch.ones(1, 2)).sum().backward()
    opt.step()
"""
MADE = "net = torch.nn.Linear(2, 1)\nopt = torch.optim.Adam(net.parameters(), lr=0.1)\n"


@pytest.mark.parametrize(("head", "body", "leaves"), HANDED.values(), ids=HANDED)
def test_what_leaves_the_file_sees_rates_that_are_set(head, body, leaves):
    text = ported(f"import torch\n{head}{MADE}{body}{LOOP}").text
    assert ("port.Adam(" in text) is leaves
    assert ("optim.AdamW(" in text) is not leaves


def test_what_is_returned_leaves_unless_the_file_calls():
    make = "import torch\ndef make(net):\n    return torch.optim.Adam(net.parameters(), lr=0.1)\n"
    assert "port.Adam(" in ported(make).text
    assert "optim.AdamW(" in ported(make + "opt = make(torch.nn.Linear(2, 1))\n").text


def test_another_file_multiplies_the_rate(tmp_path, monkeypatch):
    other = "def decay(o):\n    for group in o.param_groups:\n        group['lr'] *= 0.1\n"
    (tmp_path / "other_of_two.py").write_text(other, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    script = """import torch
from other_of_two import decay
net = torch.nn.Linear(2, 1, bias=False)
net.weight.data.fill_(1.0)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(1, 2)
made = []
for turn in range(3):
    opt.zero_grad()
    loss = net(x).sum()
    loss.backward()
    opt.step()
    made.append(loss.detach())
    decay(opt)
"""
    beside(script, tmp_path)


def test_a_wait_for_one_device_waits():
    text = ported("import torch\ntorch.cuda.synchronize('cuda:0')\ntorch.cuda.synchronize()\n").text
    assert "port.synchronize(" in text
    assert "ms.runtime.synchronize()" in text


STAR = """import torch
from model import *
decoder = CharRNN(3)
opt = torch.optim.Adam(decoder.parameters())
other = Thing(3)
torch.save(decoder, "decoder.pt")
"""


def test_a_network_that_a_star_brings_is_in_training():
    text = ported(STAR).text
    assert "decoder = port.in_training(CharRNN(3))" in text
    assert "other = Thing(3)" in text
    assert 'port.save(port.state_dict(decoder), "decoder.pt")' in text


def test_variable_may_come_by_a_star():
    text = ported("import torch\nfrom model import *\nx = Variable(torch.ones(2))\n").text
    assert "Variable" not in text
    own = "import torch\nfrom model import *\ndef Variable(x):\n    return 3\nx = Variable(1)\n"
    assert "x = Variable(1)" in ported(own).text
