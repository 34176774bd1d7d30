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


PAIRS = """import torch
from torch import nn
def filled(by):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for p in net.parameters():
        nn.init.constant_(p, by)
    return net
def both():
    return filled(0.1), filled(0.2)
def main():
    one, other = filled(0.3), filled(0.5)
    first, second = both()
    optimizer = torch.optim.SGD([*one.parameters(), *second.parameters()], lr=0.01)
    for number in range(3):
        optimizer.zero_grad()
        x = torch.ones(2, 3) * number
        loss = (one(x) - other(x).detach() + second(x) * first(x)).pow(2).sum()
        loss.backward()
        optimizer.step()
        made.append(loss.item())
made = []
main()
student, teacher = filled(0.7), filled(0.5)
student(torch.ones(2, 3)).sub(teacher(torch.ones(2, 3))).pow(2).sum().backward()
made += [p.grad for p in student.parameters()]
"""


def test_networks_that_are_made_in_pairs_are_made_once(tmp_path: Path) -> None:
    text = beside(PAIRS, tmp_path).text
    assert "student, teacher = filled(0.7), filled(0.5)\ndef forward_2():" in text


ABOVE = """import torch
from torch import nn
made = []
net = nn.Linear(3, 3)
nn.init.constant_(net.weight, 0.3)
nn.init.constant_(net.bias, 0.1)
x = torch.sin(torch.arange(6.0)).view(2, 3)
def squares(model, inputs):
    return model(inputs).pow(2).mean()
loss = squares(net, x)
loss.backward()
made += [loss.detach(), net.weight.grad]
"""


def test_a_function_above_runs_the_network_that_it_is_handed(tmp_path: Path) -> None:
    assert "port.loss(forward, net)" in beside(ABOVE, tmp_path).text
