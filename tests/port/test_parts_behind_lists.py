"""Parts of Parameters that a list of layers holds: ``net.layers[-1].weight.data[2:].mul_(0.5)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
        self.named = nn.ModuleDict({"a": nn.Linear(2, 4)})
        self.gates = nn.Parameter(torch.ones(1, 2, 3))
    def start(self, by, n):
        self.layers[-1].weight.data[n:].mul_(by)
        self.layers[-1].bias.data[:n].fill_(by)
        self.named["a"].weight.data[0].zero_()
        self.gates.data[:, :, n:].mul_(by)
        with torch.no_grad():
            self.layers[0].weight[1:, :2].add_(1)
net = filled(Net())
net.start(0.5, 2)
"""


def test_what_a_list_of_layers_holds_is_written_in_part(tmp_path: Path) -> None:
    """The values are the Parameter's own, and it learns on from them."""
    script = """
made += [net.layers[-1].weight, net.layers[-1].bias, net.named["a"].weight, net.gates]
x = torch.arange(6.0).reshape(2, 3) / 6
opt = torch.optim.SGD(net.layers.parameters(), 0.1)
for turn in range(2):
    opt.zero_grad()
    loss = net.layers(x).pow(2).sum()
    loss.backward()
    opt.step()
    net.layers[2].weight.data[:1].clamp_(min=0)
made += [net.layers[0].weight, net.layers[2].weight, net.layers(x)]
"""
    beside(FILLED + NET + script, tmp_path)
