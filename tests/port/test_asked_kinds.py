"""What a script asks of kinds and of torch itself: isinstance, hasattr, names for other files."""

from __future__ import annotations

import pytest

from .ports import beside, ported

KINDS = """import torch
import torch.nn as nn
from torch.optim import Adam, SGD
from torch.optim.lr_scheduler import StepLR
made = []
net = nn.Linear(3, 3)
for p in net.parameters():
    p.data.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
loss_fn = nn.CrossEntropyLoss()
if len(made):
    loss_fn = nn.BCEWithLogitsLoss()
crit = nn.NLLLoss()
opt = Adam(net.parameters(), lr=0.1)
sched = StepLR(opt, 3)
x, y = torch.ones(2, 3), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
for _ in range(2):
    if isinstance(loss_fn, nn.CrossEntropyLoss):
        loss = loss_fn(net(x), torch.argmax(y, 1))
    else:
        loss = loss_fn(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    made.append(loss.detach())
made += [isinstance(opt, (Adam, SGD)), type(sched) is StepLR, type(crit) == nn.NLLLoss]
"""
FIELDS = """import torch
from torch import nn
a, b = nn.CrossEntropyLoss(), nn.CrossEntropyLoss()
c = nn.NLLLoss()
a.weight = torch.tensor([0.5, 2.0, 1.0])
b.reduction = "sum"
b.train()
c.ignore_index = 1
x, y = torch.linspace(-1.0, 1.0, 6).view(2, 3), torch.tensor([0, 1])
made = [a(x, y), b(x, y), c(x, y), b.ignore_index, len(list(b.parameters()))]
"""
HAS = """import torch
import torch.nn as nn
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flash = hasattr(torch.nn.functional, "scaled_dot_product_attention")
        if not self.flash:
            self.register_buffer("mask", torch.tril(torch.ones(3, 3)))
    def forward(self, q):
        if self.flash:
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)
        return q
net = Net()
if hasattr(net, "module"):
    net = net.module
made = [net(torch.linspace(-1.0, 1.0, 12).view(1, 1, 3, 4)), hasattr(F, "nothing_like_it")]
if hasattr(torch, "compile"):
    made.append(1)
made.append(hasattr(torch.cuda, "amp") and hasattr(torch.cuda.amp, "GradScaler"))
"""
SETTINGS = """import torch
import torch.nn as nn
CUDA = torch.cuda.is_available()
device = torch.device("cuda" if CUDA else "cpu")
torch.manual_seed(0)
"""
CALLS = """import nets
from torch import nn
from models import Net
from .attention import Attention
class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.attention, self.other, self.inner = Attention(3), nets.Other(), inner
    def forward(self, x):
        x = self.inner(x, lambda y: self.attention.forward(y, x))
        return self.other.forward(x)
out = Net().forward(3)
"""


def test_what_is_asked_for_its_kind_is_made_as_one(tmp_path):
    beside(KINDS, tmp_path)


def test_a_loss_whose_fields_are_set_is_no_function(tmp_path):
    beside(FIELDS, tmp_path)


def test_what_torch_has_the_port_answers(tmp_path):
    found = beside(HAS, tmp_path)
    assert "hasattr(F" not in found.text
    assert "mask" not in found.text


@pytest.mark.parametrize(
    "asked", ["hasattr(x, 'compile')", "hasattr(torch, word)", "hasattr(torch, '__version__')"]
)
def test_other_questions_stay(asked):
    script = f"import torch\nx = word = input()\nprint({asked})\n"
    assert "hasattr(" in ported(script).text


def test_settings_keep_their_names_for_other_files():
    text = ported(SETTINGS).text
    assert "CUDA = True" in text
    assert "device = " in text


def test_what_another_file_makes_is_asked_what_its_forward_is_and_a_line_says_so():
    found = ported(CALLS)
    assert "port.forward_of(self.attention)(y, x)" in found.text
    assert "port.forward_of(self.other)(x)" in found.text
    assert {1, 3, 4} <= {edit.line for edit in found.edits if edit.kind == "unproven"}
    asked = {edit.line for edit in found.edits if "another object its forward" in edit.reason}
    assert asked == {10, 11, 12}


def test_an_object_of_pythons_own_keeps_its_forward():
    script = "import torch\nimport socket\ns = socket.socket()\ns.forward(1)\n"
    assert "s.forward(1)" in ported(script).text
