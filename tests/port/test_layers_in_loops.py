"""Layers in place that a loop runs one by one: what lists keep of the layers before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = """import torch
from torch import nn
made = []
class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2, 2, 1), nn.Sequential(nn.ELU(1.5, True), nn.Conv2d(2, 2, 3, 2, 1)),
            nn.ReLU(),
        )
    def forward(self, x):
        kept, named = [], {}
        for number, layer in enumerate(self.main):
            x = layer(x)
            kept.append(x)
            named[f"layer{number}"] = x
        return kept + list(named.values())
net = Features()
for number, p in enumerate(net.parameters()):
    p.data = torch.sin(torch.arange(p.numel()).float() * (number + 1)).view(p.shape)
found = net(torch.cos(torch.arange(32.0)).view(2, 1, 4, 4))
loss = sum((one * one).mean() for one in found)
loss.backward()
made += [loss.detach(), *[p.grad for p in net.parameters()]]
made += [one.detach() for one in net(torch.ones(1, 1, 4, 4))]
"""


def test_lists_have_what_layers_in_place_gave(tmp_path: Path) -> None:
    text = beside(FEATURES, tmp_path).text
    assert "x = port.through(layer, x, kept, named)" in text
    assert text.count("port.in_place(") == 2


def test_layers_that_change_nothing_run_as_they_are() -> None:
    plain = FEATURES.replace(", inplace=True", "").replace("1.5, True", "1.5")
    assert "port.through" not in ported(plain).text
