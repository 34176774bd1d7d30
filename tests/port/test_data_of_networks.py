"""What is named after a network and is its data: ``model_pred``, ``net_target``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

NAMED = """import torch
import torch.nn.functional as F
def loss_of(model, net_target, encoder_hidden_states):
    model_pred = model(encoder_hidden_states.half().float())
    net_target = net_target.float()
    return F.mse_loss(model_pred.float(), net_target / 2)
made = [loss_of(torch.nn.ReLU(), torch.tensor([1, 3]), torch.tensor([0.1, -2.0]))]
"""


def test_data_that_are_named_after_a_network_are_cast(tmp_path: Path) -> None:
    text = beside(NAMED, tmp_path).text
    assert "model_pred.float()" in text
    assert "encoder_hidden_states.half()" in text


COUNTED = """import torch
from torch import nn
from nets import make
net = make("net")
optimizer = net.configure_optimizers()
counts = net.num_scaling_params()
print(counts["all"])
for x, y in loader:
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
"""


def test_numbers_of_parameters_are_no_parameters() -> None:
    assert "*net.num_scaling_params()" not in ported(COUNTED).text
