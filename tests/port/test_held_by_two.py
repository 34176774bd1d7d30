"""Tensors that two hold, and one changes; what objects hold; optimizers by any name."""

from __future__ import annotations

import pytest

from .ports import beside, ported

PARTS = """import torch
made = []
def sums():
    buffer = torch.zeros(3)
    loss, steps = buffer[0].view(-1), 0
    count = buffer[1].view(-1)
    for i in range(2):
        loss += torch.ones(1) * 2
        count += 1.0
    made.append(buffer)
def rows():
    whole = torch.zeros(2, 3)
    row = whole[1]
    row += 1
    row[0] = 7
    flat = whole.view(-1)
    flat *= 2
    for i in range(2):
        part = whole[i]
        part -= i
    first = whole[:1]
    first[0, 1] += 5
    made.append(whole)
rows()
"""


def test_a_part_with_a_name_of_its_own_changes_the_whole(tmp_path):
    script = PARTS.replace("loss, steps = buffer[0].view(-1), 0", "loss = buffer[0].view(-1)")
    assert "[i] = part" in beside(script + "sums()\n", tmp_path).text


@pytest.mark.parametrize(
    "line", ["part = whole[[0, 1]]", "part = whole[whole > 0]", "part = whole.clone()"]
)
def test_a_copy_changes_nothing_else(line):
    script = f"import torch\nwhole = torch.zeros(3)\n{line}\npart += 1\nprint(whole)\n"
    assert "whole[" not in ported(script).text.replace(line.partition("= ")[2], "")


LOSSES = """import torch
from torch import nn
net = nn.Linear(2, 1)
with torch.no_grad():
    net.weight.fill_(0.5)
    net.bias.fill_(0.25)
x, made = torch.ones(3, 2), []
def of_dictionary():
    losses = {"a": net(x).mean(), "b": net(x).pow(2).mean()}
    loss = losses["a"]
    loss += losses["b"]
    loss /= 2
    loss.backward()
    made.extend([v.item() for v in losses.values()])
def of_list():
    losses = [net(x).mean(), net(x).pow(2).mean()]
    loss = losses[0]
    for one in losses[1:]:
        loss += one
    loss.backward()
    made.extend([one.item() for one in losses])
def of_name():
    box = net(x).mean()
    loss = box
    loss += net(x).pow(2).mean()
    loss.backward()
    made.append(box.item())
def detached():
    loss = net(x).mean()
    shown = loss.detach()
    loss /= 2
    loss.backward()
    made.append(shown.item())
def of_a_number():
    start = 1.0
    loss = start
    loss += net(x).mean()
    loss.backward()
    made.append(start)
def of_a_tuple():
    outputs = (net(x).mean(), x)
    loss = outputs[0]
    loss += 1
    loss.backward()
    made.append(outputs[1])
def of_another_scope(first):
    def inner():
        loss = first
        loss += net(x).mean()
        loss.backward()
        made.append(loss.item())
    inner()
    return first
of_another_scope(torch.zeros(()))
for run in (of_dictionary, of_list, of_name, detached, of_a_number, of_a_tuple):
    run()
"""


def test_a_loss_that_grows_is_seen_where_its_first_part_is_held(tmp_path):
    assert '["a"] = loss' in beside(LOSSES, tmp_path).text


HELD = """import math
import torch
from torch import nn
def of(net):
    return net.module if hasattr(net, "module") else net
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1) * 9.0)
        self.prompt = nn.Parameter(torch.ones(3) * 9.0)
class Wrapped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.module = net
net = Wrapped(Net())
with torch.no_grad():
    net.module.scale.clamp_(0, math.log(100))
    of(net).prompt.mul_(0.5).add_(1)
made = [net.module.scale.detach().clone(), net.module.prompt.detach().clone()]
@torch.no_grad()
def hold(net):
    of(net).scale.clamp_(max=2.0)
    torch.clamp_(net.prompt, -1.0, 1.0)
hold(net.module)
made += [net.module.scale.detach(), net.module.prompt.detach()]
"""


def test_what_an_object_holds_is_changed_in_place(tmp_path):
    found = beside(HELD, tmp_path)
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]


STEPS = """import torch
from torch import nn
x, made = torch.linspace(-1.0, 1.0, 12).view(4, 3), []
def new():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.1)
    return net
def train(net, parts):
    for _ in range(2):
        for o_ in parts.values():
            o_.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        for o_ in parts.values():
            o_.step()
net = new()
first, second = net[0].parameters(), net[1].parameters()
train(net, {"a": torch.optim.Adam(first, lr=0.1), "b": torch.optim.SGD(second, lr=0.1)})
made += [p.detach() for p in net.parameters()]
"""


def test_an_optimizer_of_any_name_steps(tmp_path):
    assert "port.step(o_)" in beside(STEPS, tmp_path).text


def test_a_text_says_no_mode_of_a_network():
    script = "from lib import make\nimport torch\ne = make()\ne.train('first')\n"
    assert "port.train(e, 'first')" in ported(script).text


RAISING = """import torch
from torch import nn
net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
made = []
with torch.no_grad():
    for p in net.parameters():
        p.copy_(torch.linspace(0.2, 0.8, p.numel()).view(p.shape))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def train(net, opt, batches):
    for x in batches:
        opt.zero_grad()
        first, other = net(x).pow(2).sum(0).unbind(0)
        if torch.isnan(first):
            raise ValueError("first")
        elif torch.isnan(other):
            raise ValueError("other")
        else:
            loss = first + 0.3 * other
            loss.backward()
            opt.step()
        made.append(loss.item())
train(net, opt, [torch.linspace(-1.0, i, 6).view(3, 2).pow(2) for i in range(1, 4)])
made += [net[1].running_mean, net[1].running_var, net[0].weight.detach()]
"""


def test_a_loss_behind_branches_that_raise_runs_its_network_once(tmp_path):
    found = beside(RAISING, tmp_path)
    assert not [edit for edit in found.edits if "once more" in edit.effect]
