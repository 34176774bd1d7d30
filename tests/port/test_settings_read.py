"""Settings of layers that a script reads, in ports to MindSpore, beside torch."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside, ported

READ = """def plain(value):
    return list(value) if isinstance(value, (tuple, list)) else value
convs = [nn.Conv2d(4, 6, 3, 2, (1, 2), groups=2), nn.Conv2d(4, 6, (1, 3), padding=1, dilation=2)]
convs += [nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3), nn.Conv3d(2, 2, 3, padding=1)]
convs += [nn.Conv1d(4, 4, 3, padding=2), nn.ConvTranspose2d(4, 2, 3, 2, 1)]
convs += [nn.ConvTranspose2d(4, 2, 3, 2, output_padding=1), nn.ConvTranspose1d(4, 2, 3)]
convs += [nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")]
for m in convs:
    made += [m.groups, plain(m.kernel_size), plain(m.stride), plain(m.padding), plain(m.dilation)]
    made += [plain(m.output_padding), m.padding_mode == "zeros", m.transposed]
    made += [m.in_channels, m.out_channels, getattr(m, "groups", 1), hasattr(m, "padding_mode")]
    if isinstance(m.padding, tuple):
        made += [m.padding[0], (m.kernel_size[0] - m.stride[0] + 2 * m.padding[-1]) // m.groups]
pools = [nn.MaxPool1d(3, 2, 1), nn.MaxPool1d(2), nn.AvgPool1d(3, 2, 1), nn.AvgPool1d(2)]
pools += [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 3)), nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(2)]
pools += [nn.MaxPool2d(3, 2, 1, ceil_mode=True)]
for m in pools:
    made += [plain(m.kernel_size), plain(m.stride), plain(m.padding), bool(m.ceil_mode)]
    if isinstance(m, nn.MaxPool2d):
        made += [m.dilation, m.return_indices]
    elif isinstance(m, nn.AvgPool2d):
        made += [m.count_include_pad, m.divisor_override is None]
norms = [nn.BatchNorm2d(3, 1e-3, 0.3), nn.BatchNorm3d(3, 1e-2), nn.BatchNorm1d(3, affine=False)]
for m in norms:
    made += [m.num_features, m.eps, m.affine, m.track_running_stats]
made += [norms[0].momentum, norms[1].momentum]
for m in [nn.LayerNorm(4), nn.LayerNorm(4, 1e-3, elementwise_affine=False)]:
    made += [m.eps, m.elementwise_affine, plain(m.normalized_shape)]
"""


def checked(script):
    """Return a script whose words are compared as truth values: numpy compares numbers."""
    return script + "made = [one == 'same' if isinstance(one, str) else one for one in made]\n"


def test_settings_that_are_read_are_torchs(tmp_path):
    found = beside(checked(FILLED + READ), tmp_path)
    assert 'port.setting(m, "padding")' in found.text


NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.groups = 3
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2, bias=False)
        self.norm = nn.LayerNorm(6)
        self.register_buffer("kernel", torch.ones(2, 1, 3, 3))
    def forward(self, x):
        y = F.conv2d(x, self.kernel, None, self.conv.stride, self.conv.padding, 1, self.conv.groups)
        return F.layer_norm(self.conv(x), (6,), None, None, self.norm.eps).abs().sum() + y.sum()
net = filled(Net())
made += [net(torch.linspace(-1.0, 2.0, 48).view(1, 2, 4, 6)).detach(), net.groups]
"""


def test_settings_of_known_layers_are_read_in_a_network(tmp_path):
    head = FILLED + "import torch.nn.functional as F\n"
    found = beside(head + NET, tmp_path)
    assert "self.conv.group)" in found.text
    assert "self.norm.epsilon" in found.text
    assert "self.groups = 3" in found.text


@pytest.mark.parametrize(
    "line",
    [
        "args.groups = args.padding + 1",
        "def f(x): return x.stride(0)",
        "class A:\n    def __init__(self, padding):\n        self.padding = padding\nA(1).padding",
        "conv.kernel_size[0] * conv.stride[1]",
    ],
)
def test_what_is_no_layers_setting_stays(line):
    head = "from torch import nn\nimport argparse\nargs = argparse.Namespace(groups=1, padding=2)\n"
    text = ported(head + "conv = nn.Conv2d(3, 3, 3)\n" + line + "\n").text
    assert "port.setting" not in text


CHANGED = """m = nn.Conv2d(2, 2, 3, padding=(1, 2))
m.weight.data.fill_(1.0)
m.bias.data.fill_(0.5)
m.padding = (m.padding[1], m.padding[0])
made += [m(torch.ones(1, 2, 4, 4)).detach(), list(m.padding)]
n = nn.Conv1d(2, 2, 3)
n.padding, kept = (2,), n.groups
for p in n.parameters():
    p.data.fill_(1.0)
n.stride = (2,)
made += [n(torch.ones(1, 2, 4)).detach(), list(n.padding), kept]
"""


def test_settings_that_were_changed_are_read(tmp_path):
    beside(FILLED + CHANGED, tmp_path)
