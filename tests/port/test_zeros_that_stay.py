"""``zero_grad(set_to_none=False)``: gradients are zeros then, and steps still move by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.port.ports import FILLED, beside

if TYPE_CHECKING:
    from pathlib import Path

TWO = """
net = filled(nn.Linear(3, 2))
other = filled(nn.Linear(3, 2))
x = torch.arange(6.0).reshape(2, 3) / 6
opt = torch.optim.SGD(
    [*net.parameters(), *other.parameters()], 0.1, momentum=0.9, weight_decay=0.1
)
"""


@pytest.mark.parametrize(
    "call",
    [
        "opt.zero_grad(set_to_none=False)",
        "opt.zero_grad(False)",
        "net.zero_grad(set_to_none=False); other.zero_grad(False)",
        "opt.zero_grad()",
    ],
)
def test_what_a_loss_no_longer_reaches(call: str, tmp_path: Path) -> None:
    """Weight decay and momentum move it where its gradient is zero, not where it has none."""
    script = f"""
for turn in range(3):
    {call}
    made.append(net.weight.grad is None)
    loss = net(x).pow(2).sum()
    if turn == 0:
        loss = loss + other(x).sum()
    loss.backward()
    opt.step()
{call}
made += [net.weight, other.weight, net.weight.grad is None]
if net.weight.grad is not None:
    made.append(net.weight.grad.clone())
opt.step()
made += [net.weight, other.bias]
"""
    beside(FILLED + TWO + script, tmp_path)
