"""Ports to MindSpore: what a script draws from numpy and from Python is as beside torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore_port.engine import port_text
from mpcore_port.targets import Options

from .ports import TARGET, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

MIXED = """import random
import numpy as np
import torch
from torch import nn
np.random.seed(11)
random.seed(12)
torch.manual_seed(13)
first = np.random.beta(0.4, 0.4)
torch.cuda.manual_seed_all(-14)
layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LSTM(4, 5), nn.GRUCell(4, 5), nn.Linear(5, 2)
net = nn.Sequential(*layers)
nn.init.kaiming_normal_(net[4].weight)
nn.init.trunc_normal_(net[4].weight, std=0.02)
torch.distributions.Beta(torch.tensor(2.0), torch.tensor(3.0)).sample()
noise = torch.randn(3)
made = [first, np.random.beta(0.4, 0.4), np.random.permutation(9), random.random()]
"""


def test_seeds_and_layers_leave_other_streams_alone(tmp_path: Path) -> None:
    beside(MIXED, tmp_path)


AGAIN = """import torch
from torch import nn
def weights(seed):
    torch.manual_seed(seed)
    return torch.cat([nn.Linear(3, 4).weight, nn.Linear(3, 4).weight]).detach()
one, same, other = weights(1), weights(1), weights(2)
made = [bool((one == same).all()), bool((one == other).any()), bool((one[:4] == one[4:]).any())]
"""


def test_a_seed_makes_the_same_weights_again(tmp_path: Path) -> None:
    beside(AGAIN, tmp_path)


NATIVE = """import numpy as np
import torch
from torch import nn
np.random.seed(1)
net = nn.Linear(2, 3)
made = [np.random.beta(1.0, 1.0), np.random.RandomState(1).rand()]
"""


def test_what_draws_has_the_runtime_keep_layers_apart(tmp_path: Path) -> None:
    text = beside(NATIVE, tmp_path).text
    assert "layers leave numpy's stream alone" in text
    nothing = NATIVE.replace("np.random.seed(1)\n", "").replace("np.random.beta(1.0, 1.0)", "1")
    assert "mpcore_port_runtime" not in ported(nothing).text
    said = [e for e in port_text(NATIVE, TARGET, Options(plain=True)).edits if e.kind == "unproven"]
    assert [edit.line for edit in said] == [4, 6]


def test_seeds_are_mindspores_own_where_nobody_draws_from_other_streams() -> None:
    seeds = "torch.manual_seed(3)\ntorch.manual_seed(8589934592)\ntorch.manual_seed(given)\n"
    asked = "import torch\nimport sys\ngiven = len(sys.argv)\n" + seeds
    text = ported(asked).text
    assert "ms.set_seed(3)\nport.manual_seed(8589934592)\nport.manual_seed(given)" in text
    assert "port.manual_seed(3)" in ported("import random\n" + asked).text
    plain = port_text("import random\n" + asked, TARGET, Options(plain=True)).text
    assert "ms.set_seed(3)\nms.set_seed(int(8589934592) % 2**32)\nms.set_seed(given)" in plain
