"""Networks that are made of others: torch's parts keep the mode that they were put into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path

PARTS = (
    FILLED
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.last = nn.Linear(4, 2)
    def forward(self, x):
        return self.last(self.first(x))
class Around(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.norm = nn.BatchNorm1d(2)
    def forward(self, x):
        return self.norm(self.net(x))
class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = filled(Net())
        self.net.first.eval()
        self.norm = nn.BatchNorm1d(2)
    def forward(self, x):
        return self.norm(self.net(x))
x = torch.arange(12.0).reshape(4, 3).sin()
net = filled(Net())
net.eval()
parts = nn.Sequential(*list(net.children())[:-1])
made += [parts(x), parts.training, parts[0].training]
around = Around(net)
made += [around(x), around.training, around.net.training, around.norm.training]
frozen = Frozen()
made += [frozen(x), frozen.net.first.training, frozen.net.last.training]
fresh = nn.Sequential(filled(Net()), nn.BatchNorm1d(2))
made += [fresh(x), fresh[0].first[1].training]
frozen.train()
made += [frozen(x), frozen.net.first.training]
"""
)


def test_parts_keep_the_mode_that_they_were_put_into(tmp_path: Path) -> None:
    beside(PARTS, tmp_path)
