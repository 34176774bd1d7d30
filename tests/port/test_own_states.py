"""Networks that say themselves what a copy of them holds."""

from __future__ import annotations

import pytest

from .ports import FILLED, beside

HEAD = f"import copy\n{FILLED}"
TAIL = """
net = filled(Net())
other = copy.deepcopy(net)
with torch.no_grad():
    net.lin.weight.zero_()
made += [other(torch.ones(2, 3)), net(torch.ones(2, 3)), other.rate, other.training,
    [p.numel() for p in other.parameters()]]
"""
NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)
        self.rate = 2.0
        self.log = []
    def forward(self, x):
        return self.lin(x) * self.rate
"""


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(
            "    def __setstate__(self, state):\n"
            "        if 'rate' not in state:\n"
            "            state['rate'] = 1.0\n"
            "        super(Net, self).__setstate__(state)\n",
            id="what older checkpoints have not",
        ),
        pytest.param(
            "    def __getstate__(self):\n"
            "        state = self.__dict__.copy()\n"
            "        state['rate'] = 5.0\n"
            "        del state['log']\n"
            "        return state\n"
            "    def __setstate__(self, state):\n"
            "        self.__dict__.update(state)\n"
            "        self.log = [1]\n",
            id="both",
        ),
        pytest.param(
            "    def __getstate__(self):\n"
            "        state = dict(super().__getstate__())\n"
            "        state['rate'] = 4.0\n"
            "        return state\n",
            id="only what is given",
        ),
        pytest.param(
            "    def __setstate__(self, d):\n        self.__dict__ = d\n        self.rate = 3.0\n",
            id="wholly",
        ),
    ],
)
def test_copies_go_by_a_networks_own_state(methods, tmp_path):
    beside(HEAD + NET + methods + TAIL, tmp_path)
