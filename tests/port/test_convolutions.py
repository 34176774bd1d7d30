"""Convolutions in ports to MindSpore: weights, settings, borders, transposed ones, beside torch."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import mpcore_port_runtime as port

from .ports import FILLED, beside, ported, verified

F = FILLED + "import torch.nn.functional as F\n"
RUN = """y = net(x)
made.append(y.detach())
(y * torch.linspace(0.1, 0.3, y.numel()).view(y.shape)).sum().backward()
made.append(x.grad)
made += [p.grad for p in net.parameters()]
"""


def of(shape, net):
    """Return a script that runs a filled network forwards and backwards on one input."""
    size = 1
    for one in shape:
        size *= one
    leaf = f"x = nn.Parameter(torch.linspace(-1.0, 2.0, {size}).view({shape}).sin())\n"
    return F + leaf + f"net = filled({net})\n" + RUN


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("shape", "net"),
    [
        ((2, 4, 9), "nn.Conv1d(4, 6, 3, padding=2, dilation=2, groups=2)"),
        ((2, 4, 9), "nn.Conv1d(4, 6, (4,), stride=[2], padding=(1,), bias=False)"),
        ((2, 4, 9), "nn.Conv1d(4, 6, 4, padding='same')"),
        ((4, 9), "nn.Conv1d(4, 2, 3)"),
        ((2, 4, 9), "nn.Conv1d(4, 6, 3, padding=1, padding_mode='circular')"),
        ((2, 4, 9), "nn.Conv1d(4, 6, 3, padding=2, padding_mode='reflect')"),
        ((2, 4, 9), "nn.Conv1d(4, 6, 4, padding='same', padding_mode='replicate')"),
        ((2, 2, 5, 6), "nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode='circular')"),
        ((2, 2, 5, 6), "nn.Conv2d(2, 3, (2, 3), 2, 1, padding_mode='reflect')"),
        ((1, 2, 4, 5, 4), "nn.Conv3d(2, 2, 3, padding=1, padding_mode='replicate')"),
        ((2, 4, 5), "nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1)"),
        ((2, 4, 5), "nn.ConvTranspose1d(4, 6, 3, 2, 1, 0, 2, False, 3)"),
        ((2, 4, 5), "nn.ConvTranspose1d(4, 6, 2, output_padding=1, dilation=3, padding=1)"),
        ((1, 2, 4, 3), "nn.ConvTranspose2d(2, 3, 3, 2, 1, output_padding=(1, 0))"),
        ((1, 2, 3, 4, 3), "nn.ConvTranspose3d(2, 2, 3, 2, 1, output_padding=1)"),
        ((1, 2, 3, 4, 3), "nn.ConvTranspose3d(2, 4, (2, 1, 3), groups=2, dilation=2)"),
    ],
)
def test_a_convolution_gives_torchs_numbers_and_gradients(shape, net, tmp_path):
    found = beside(of(shape, net), tmp_path)
    assert "refused" not in {edit.kind for edit in found.edits}, found.edits


CALLS = """def leaf(*shape):
    n = 1
    for one in shape:
        n *= one
    return nn.Parameter(torch.linspace(-1.0, 2.0, n).view(shape).sin())
x1, x2, x3 = leaf(2, 4, 7), leaf(2, 4, 5, 6), leaf(1, 4, 3, 4, 4)
w1, w2, w3 = leaf(6, 2, 3), leaf(6, 2, 3, 2), leaf(6, 2, 2, 1, 2)
t1, t2, t3 = leaf(4, 3, 3), leaf(4, 3, 2, 3), leaf(4, 3, 2, 2, 1)
b, pad = leaf(6), "same"
ys = [F.conv1d(x1, w1, b, 2, 1, 1, 2), F.conv1d(x1, w1, groups=2, dilation=2, padding=pad)]
ys += [F.conv2d(x2, w2, b, (2, 1), (0, 1), groups=2), F.conv2d(x2, w2, None, 1, pad, 1, 2)]
ys += [torch.conv2d(x2, w2, b, padding=[1, 0], groups=2), F.conv3d(x3, w3, b, groups=2)]
ys += [F.conv_transpose1d(x1, t1, b, 2, 1, 1, 2, 1), F.conv_transpose2d(x2, t2, groups=2, stride=2)]
ys += [F.conv_transpose2d(x2, t2, None, (2, 3), (1, 0), (0, 2)), F.conv_transpose3d(x3, t3)]
sum((y * torch.linspace(-1.0, 1.0, y.numel()).view(y.shape)).sum() for y in ys).backward()
made += [y.detach() for y in ys]
made += [p.grad for p in (x1, x2, x3, w1, w2, w3, t1, t2, t3, b)]
"""


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_functions_of_convolutions_give_torchs_numbers_and_gradients(tmp_path):
    assert "refused" not in {edit.kind for edit in beside(F + CALLS, tmp_path).edits}


HEIRS = """class Standard(nn.Conv2d):
    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)
class Scaled(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight * 2, self.bias)
class Causal(nn.Conv1d):
    def __init__(self, into, out, k, dilation=1):
        super().__init__(into, out, kernel_size=k, dilation=dilation)
        self.left = (self.kernel_size[0] - 1) * self.dilation[0]
    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))
class Late(nn.Conv2d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.padding = (self.kernel_size[0] // 2, self.kernel_size[1] // 2)
x = torch.linspace(-1.0, 2.0, 120).view(2, 2, 5, 6).sin()
for net in [Standard(2, 4, 3, padding=(1, 2), groups=2), Scaled(2, 2, 3, padding=1), Late(2, 2, 3)]:
    made.append(filled(net)(x).detach())
made.append(filled(Causal(4, 3, 3, 2))(x.reshape(2, 4, 15)).detach())
"""


def test_classes_made_of_convolutions_have_torchs_settings(tmp_path):
    found = beside(F + HEIRS, tmp_path)
    assert "class Standard(port.Conv2d)" in found.text


WEIGHTS = """net = nn.Sequential(nn.Conv1d(4, 6, 3), nn.ConvTranspose1d(6, 2, 5, groups=2))
made += [[p.dim() for p in net.parameters()]]
for m in net.modules():
    if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
        made += [m.weight.dim(), m.weight.size(2), list(m.weight.shape), m.weight[0, 0].numel()]
        made += [m.kernel_size[0], list(m.padding), m.groups, m.stride[0], m.transposed]
        fan = m.in_channels * m.kernel_size[0]
        m.weight.data.fill_(fan)
made += [list(v.shape) for v in net.state_dict().values()]
made += [type(net[0]) == nn.Conv1d, type(net[1]) == nn.Conv1d, isinstance(net[0], nn.Conv2d)]
made.append(net[0].weight.detach().sum(dim=(1, 2)))
"""


def test_weights_of_one_dimension_have_three_axes(tmp_path):
    beside(F + WEIGHTS, tmp_path)


SIZED = """net = filled(nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1))
x = torch.linspace(-1.0, 1.0, 20).view(2, 2, 5)
made += [net(x, output_size=[10]).detach(), net(x, output_size=(2, 3, 9)).detach()]
"""


def test_a_transposed_convolution_is_asked_for_a_size(tmp_path):
    beside(F + SIZED, tmp_path)


STEP = """import torch
from torch import nn
class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Conv1d(3, 8, 3, padding=1, padding_mode="circular", bias=False)
        self.up = nn.ConvTranspose1d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(4, 1)
    def forward(self, x):
        x = self.up(torch.relu(self.token(x.permute(0, 2, 1))))
        return self.head(x.transpose(1, 2).mean(1))
def main():
    model = Embedding()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.MSELoss()
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0)
    for _ in range(4):
        x, y = torch.randn(4, 7, 3), torch.randn(4, 1)
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
main()
"""


def test_a_step_through_convolutions_of_sequences_is_verified(tmp_path):
    found = verified(STEP, tmp_path, ("float32", "mixed"))
    assert found.passed, found.why_not


@pytest.mark.parametrize(
    ("net", "axes"),
    [
        (port.Conv1d(2, 4, 3, padding=1, padding_mode="circular", groups=2), 1),
        (port.Conv2d(2, 4, 2, padding="same", padding_mode="reflect"), 2),
        (port.ConvTranspose1d(2, 4, 3, 2, 1, output_padding=1), 1),
        (port.ConvTranspose2d(2, 4, 2, output_padding=1, dilation=2), 2),
    ],
)
def test_a_convolution_compiles(net, axes):
    x = Tensor(np.sin(np.arange(2 * 2 * 5**axes)).reshape(2, 2, *[5] * axes).astype(np.float32))

    def square(one):
        return net(one).square().sum()

    plain = ms.grad(square)
    np.testing.assert_allclose(
        ms.jit(plain, fullgraph=True)(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-5
    )


def test_arguments_are_bound_to_a_convolution():
    head = "from functools import partial\nfrom torch import nn\n"
    text = ported(head + "conv = partial(nn.Conv2d, padding_mode='reflect')\n").text
    assert "partial(port.torch_nn.Conv2d, padding_mode='reflect')" in text
    made = port.torch_nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
    assert made.padding_mode == "reflect"
