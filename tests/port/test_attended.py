"""Attention of xformers and flash_attn on MindSpore, beside what it is by torch's operations."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mpcore_compat.flash_attn
import mpcore_compat.xformers
from mpcore_compat.xformers import ops

from .ports import FILLED, beside, ported

SCRIPT = f"""{FILLED}
import xformers.ops as xops
from xformers.ops import memory_efficient_attention
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func
from flash_attn.flash_attn_interface import flash_attn_kvpacked_func as packed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, 4).unbind(2)
        one = memory_efficient_attention(q, k, v, scale=0.3)
        two = xops.memory_efficient_attention(q, k, v, attn_bias=xops.LowerTriangularMask())
        bias = torch.sin(torch.arange(float(n * n))).view(1, 1, n, n)
        three = memory_efficient_attention(q, k, v, attn_bias=bias, p=0.0)
        four = flash_attn_func(q, k[:, :, :1], v[:, :, :1], causal=True, deterministic=True)
        five = flash_attn_func(q[:, 2:], k, v, softmax_scale=0.4, causal=True)
        six = flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), window_size=(1, 1))
        seven = packed(q, torch.stack([k, v], 2), 0.0)
        eight = memory_efficient_attention(q[:, :, 0], k[:, :, 0], v[:, :, 0])
        made = one + two + three + four + six + seven + eight[:, :, None]
        return self.out(made.flatten(2)).mean() + five.pow(2).mean()

net = filled(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.5)
x = torch.cos(torch.arange(80.0) * 0.9).view(2, 5, 8)
for _ in range(4):
    opt.zero_grad()
    loss = net(x)
    loss.backward()
    opt.step()
    made.append(loss)
"""


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the original import what is written with torch's operations."""
    monkeypatch.setitem(sys.modules, "xformers", mpcore_compat.xformers)
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        monkeypatch.setitem(sys.modules, name, mpcore_compat.flash_attn)


def test_attention_trains_beside_torchs(tmp_path: Path) -> None:
    found = ported(SCRIPT)
    assert not [one for one in found.edits if one.kind == "refused"]
    beside(SCRIPT, tmp_path)
