"""Functions of torch that MindSpore has not, or otherwise: values and gradients beside torch."""

from __future__ import annotations

import numpy as np
import pytest

from .ports import FILLED, compare, loaded, ported

HEAD = (
    FILLED
    + """
import torch.nn.functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, SIZE).reshape(SHAPE))
    def forward(self, x):
        w = self.w
        BODY
        return made_of
net = Net()
x = torch.linspace(-2, 2, SIZE).reshape(SHAPE).cos()
for _ in range(2):
    out = net(x)
    loss = (out * out * torch.linspace(0.5, 1, out.numel()).reshape(out.shape)).sum()
    loss.backward()
    made += [out.detach(), net.w.grad.clone()]
"""
)
FORMS = {
    "fold": ((2, 8, 6), "made_of = F.fold(w * x, (3, 4), kernel_size=2)"),
    "fold, apart": (
        (2, 12, 6),
        "made_of = F.fold(w * x, output_size=(5, 7), kernel_size=(3, 2), padding=(1, 0), "
        "stride=(2, 3), dilation=(1, 2))",
    ),
    "fold, spread": ((1, 4, 9), "made_of = nn.Fold(5, 2, dilation=2, padding=1, stride=2)(w * x)"),
    "fold of one": ((4, 9), "made_of = nn.Fold(output_size=(4, 4), kernel_size=(2, 2))(w * x)"),
    "unfold and fold": (
        (1, 2, 4, 5),
        "made_of = F.fold(F.unfold(w * x, 3, padding=1), (4, 5), 3, padding=1)",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_patches_are_put_together(form, tmp_path):
    shape, body = FORMS[form]
    size = 1
    for one in shape:
        size *= one
    script = HEAD.replace("SIZE", str(size)).replace("SHAPE", str(shape)).replace("BODY", body)
    found = ported(script)
    compare(script, found.text, tmp_path, 1e-4, 1e-5)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


NORM = (
    FILLED
    + """
import torch.nn.functional as F
class Norm(nn.Module):
    def __init__(self, size, weighed=True):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size)) if weighed else None
        self.bias = nn.Parameter(torch.linspace(-1, 1, size)) if weighed else None
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))
    def forward(self, x):
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training, 0.2, eps=1e-3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm, self.plain = Norm(3), Norm(3, weighed=False)
        self.scale = nn.Parameter(torch.ones(4, 1))
    def forward(self, x):
        x = self.norm(self.conv(x)) + self.plain(x[:, [0, 1, 0]] * 2)
        w = self.scale * torch.arange(20.0).view(4, 5).sin()
        own = F.batch_norm(w.view(1, 4, -1), None, None, weight=None, training=True, momentum=0)
        return x, own
net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.linspace(-2, 2, 96).reshape(3, 2, 4, 4).sin()
for step in range(3):
    opt.zero_grad()
    out, own = net(x * (step + 1))
    loss = (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum() + (own ** 3).sum()
    loss.backward()
    opt.step()
    made += [loss.item(), net.norm.running_mean.clone(), net.norm.running_var.clone()]
    made += [net.conv.weight.detach().clone(), net.norm.weight.detach().clone()]
    made += [net.plain.running_var.clone(), net.scale.detach().clone()]
net.eval()
with torch.no_grad():
    made.append(net(x)[0])
"""
)


def test_batch_norm_as_a_function_moves_its_statistics(tmp_path):
    found = ported(NORM)
    compare(NORM, found.text, tmp_path, 1e-3, 1e-4)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


HEADS = (
    FILLED
    + """
import torch.nn.functional as F
class Pool(nn.Module):
    def __init__(self, apart):
        super().__init__()
        self.apart = apart
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.c_proj = nn.Linear(4, 4)
        self.whole = nn.Parameter(torch.linspace(-1, 1, 48).view(12, 4))
    def forward(self, x, mask=None, padding=None):
        weights = {} if not self.apart else {
            "use_separate_proj_weight": True, "q_proj_weight": self.q_proj.weight,
            "k_proj_weight": self.k_proj.weight, "v_proj_weight": self.v_proj.weight}
        biases = torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias])
        return F.multi_head_attention_forward(
            x[:2], x, x, x.shape[-1], 2, None if self.apart else self.whole, biases,
            None, None, False, 0.0, self.c_proj.weight, self.c_proj.bias,
            training=self.training, key_padding_mask=padding, need_weights=True, attn_mask=mask,
            **weights)
x = torch.linspace(-2, 2, 60).view(5, 3, 4).sin()
mask = torch.zeros(2, 5)
mask[0, 2:] = float("-inf")
padding = torch.tensor([[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2])
for apart in (True, False):
    net = filled(Pool(apart))
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    for given in ({}, {"mask": mask}, {"mask": mask.isinf(), "padding": padding}):
        opt.zero_grad()
        out, shares = net(x, **given)
        loss = (out ** 2).sum() + (shares ** 2).sum()
        loss.backward()
        opt.step()
        made += [loss.item(), out.detach(), shares.detach(), net.c_proj.weight.detach().clone()]
    made += [net.q_proj.weight, net.whole, net.q_proj.bias]
"""
)


def test_attention_as_a_function_of_its_weights(tmp_path):
    found = ported(HEADS)
    compare(HEADS, found.text, tmp_path, 1e-3, 1e-4)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


WHOLE = """
import torch
import torch.nn.functional as F
made = []
labels = torch.tensor([[0, 2], [1, 1]])
made.append(F.one_hot(labels))
made.append(torch.nn.functional.one_hot(labels.view(-1)).float())
made.append(torch.bitwise_and(labels, 1))
made.append(torch.bitwise_and(labels > 0, labels < 2))
made.append(torch.bitwise_or(labels, torch.tensor([4, 8])))
made.append(torch.bitwise_xor(labels, 3))
made.append(torch.floor_divide(torch.tensor([7, -7]), 2))
made.append(torch.floor_divide(torch.tensor([7.5, -7.5]), torch.tensor([2.0, 2.0])))
"""


def test_whole_numbers_bit_by_bit(tmp_path):
    found = ported(WHOLE)
    compare(WHOLE, found.text, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


SCALED = (
    FILLED
    + """
from apex import amp
from timm.utils import ApexScaler, dispatch_clip_grad
def run(of_timm, clip):
    net = filled(nn.Linear(3, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net, opt = amp.initialize(net, opt, opt_level="O1")
    scaler = ApexScaler()
    x, y = torch.linspace(-1, 1, 12).view(4, 3), torch.tensor([0, 1, 1, 0])
    for step in range(4):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        if step % 2 == 0:
            opt.zero_grad()
        if of_timm:
            scaler(loss, opt, clip_grad=clip, parameters=net.parameters(), need_update=step % 2)
        else:
            with amp.scale_loss(loss, opt) as scaled:
                scaled.backward()
            if step % 2:
                if clip is not None:
                    dispatch_clip_grad(amp.master_params(opt), clip)
                opt.step()
    return net.weight, scaler.state_dict()
"""
)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_timms_scaler_over_apex_is_what_it_is_made_of(clip, tmp_path):
    text = ported(SCALED).text
    assert "refused" not in text
    made = loaded(f"{text}\nmade = [run(True, {clip}), run(False, {clip})]\n", tmp_path)["made"]
    (one, state), (other, _) = made
    np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), 1e-6)
    assert state["loss_scaler0"]["loss_scale"] == 65536.0
    start = np.linspace(-1, 1, 6).reshape(2, 3)
    assert np.abs(one.asnumpy() - start).max() > 1e-3
