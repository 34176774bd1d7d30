"""What scripts of pictures ask of functions whose facts need more than one argument to fit."""

from __future__ import annotations

import pytest

from .ports import beside, ported

HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F
made = []
x = torch.linspace(-1.0, 1.0, 2 * 3 * 5 * 6).view(2, 3, 5, 6)
"""
CONV = """
def window(channel, size):
    return torch.linspace(0.0, 1.0, size * size).view(1, 1, size, size).expand(
        channel, 1, size, size).contiguous()
scale = torch.ones(1)
w = window(3, 3)
made.append(F.conv2d(x, w, padding=1, groups=3))
made.append(F.conv2d(x, w, None, 2, (1, 0), 1, 3))
made.append(F.conv2d(x, torch.cat([w, w]), torch.ones(6), dilation=2, groups=x.size(1)))
net = nn.Conv2d(3, 3, 1)
for p in net.parameters():
    p.data.fill_(0.3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for turn in range(3):
    loss = F.conv2d(net(x), w, padding=3 // 2, groups=3).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""


GRID = """
class Warp(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Linear(4, 6)
        self.loc.weight.data.fill_(0.1)
        self.loc.bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
    def forward(self, img, code):
        theta = self.loc(code).view(-1, 2, 3)
        grid = F.affine_grid(theta, img.size(), align_corners=True)
        out = F.grid_sample(img, grid, mode="bilinear", align_corners=True)
        return F.grid_sample(out, grid * 0.5, "nearest", "border", False)
net = Warp()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
code = torch.linspace(-0.2, 0.3, 8).view(2, 4)
for turn in range(3):
    loss = (net(x, code) - x.flip(3)).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
made += [p.detach() for p in net.parameters()]
"""


KINDS = """
y, z = x * 2, x.long()
if y.type() == x.data.type():
    made.append(x)
if z.type() != x.type():
    made.append(y)
made.append(1 if x.data.type() == z.data.type() else 2)
"""


SAME = {"convolutions in groups": CONV, "warped pictures": GRID, "types of two tensors": KINDS}
SAME["a type alone"] = "made += [int(y.type() == 'torch.FloatTensor') for y in (x, x.long())]\n"
REFUSED = {
    "a bicubic warp": "y = F.grid_sample(x, g, mode='bicubic')\n",
}


@pytest.mark.parametrize("lines", SAME.values(), ids=SAME)
def test_what_is_ported_gives_what_torch_gives(lines, tmp_path):
    found = beside(HEAD + lines, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}


@pytest.mark.parametrize("lines", REFUSED.values(), ids=REFUSED)
def test_what_has_no_equal_is_refused_by_its_line(lines):
    found = ported(HEAD + lines)
    assert [edit.line for edit in found.edits if edit.kind == "refused"] == [6]


HOOKS = """
kept = {}
net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.ReLU(inplace=INPLACE))
net[1].register_forward_hook(lambda module, given, out: kept.update(bn=out))
"""


@pytest.mark.parametrize("inplace", ["True", "False"])
def test_a_hook_in_front_of_what_works_in_place_is_unproven(inplace):
    found = ported(HEAD + HOOKS.replace("INPLACE", inplace))
    lines = {edit.line for edit in found.edits if edit.kind == "unproven"}
    assert (9 in lines) == (inplace == "True")


def test_a_probability_of_one_is_said_to_cost_less():
    found = ported(HEAD + "criterion = nn.BCELoss()\ny = F.binary_cross_entropy(x, x)\n")
    effects = [edit.effect for edit in found.edits if edit.kind == "changed"]
    assert sum("27.6" in effect for effect in effects) == 2


IN_PLACE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        for p in self.parameters():
            p.data.fill_(0.4)
    def forward(self, x):
        out = torch.relu_(self.conv(x))
        out = torch.add(out, out)
        return torch.clamp_(out, 0.0, 1.0)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for turn in range(3):
    loss = net(x).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    made.append(loss.detach())
"""


def test_functions_that_work_in_place_are_methods(tmp_path):
    found = beside(HEAD + IN_PLACE, tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}


SETTINGS = """import torch
torch.manual_seed(0)
device = torch.device("cuda", 0)
mode = "train"
if mode == "train":
    weights = torch.Tensor([1.0]).to(device)
"""


def test_a_file_of_settings_keeps_its_device():
    assert "device = " in ported(SETTINGS).text
    assert "device = " not in ported(SETTINGS + "for x in weights:\n    print(x)\n").text


TEXTS = """
loss = (x * x).sum()
fmt = ["{:.2f} {n}"]
text = "epoch {:>3} | {:.5f}" + \\
    " | {:.2f} {}"
made.append(len(text.format(1, loss, loss, "s")))
made.append(len(("{:.3f} " * 2).format(*[loss, loss])))
made.append(len(("{:.3f} " + "{:.1f}").format(loss, loss)))
made.append(len(fmt[0].format(loss, n=3)))
"""


def test_texts_that_are_put_together_show_numbers(tmp_path):
    beside(HEAD + TEXTS, tmp_path)
