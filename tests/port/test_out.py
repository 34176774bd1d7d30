"""Functions of torch that put what they give into ``out``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.port.ports import FILLED, beside, ported

if TYPE_CHECKING:
    from pathlib import Path

OUT = """
net = filled(nn.Linear(3, 2))
x = torch.arange(6.0).reshape(2, 3) / 6
opt = torch.optim.SGD(net.parameters(), 0.1)
largest = {}
def tidy(parameters):
    for p in parameters:
        if p.grad is not None:
            torch.nan_to_num(p.grad, nan=0.0, posinf=1e5, neginf=-1e5, out=p.grad)
            held = largest.setdefault(p, torch.zeros_like(p.grad))
            torch.maximum(held, p.grad.abs(), out=held)
for turn in range(2):
    opt.zero_grad()
    loss = (net(x) * torch.tensor([1.0, float("inf") if turn else 2.0])).sum()
    loss.backward()
    tidy(net.parameters())
    made += [p.grad.clone() for p in net.parameters()]
    opt.step()
made += [net.weight, *largest.values()]
buffer = torch.ones(2, 3)
view = buffer
torch.mul(x, 2, out=buffer)
torch.exp(buffer[0], out=buffer[1])
made += [buffer, view]
"""


def test_out_is_written_where_all_see_it(tmp_path: Path) -> None:
    """A gradient, what a dictionary holds, a name and a part of one have torch's values."""
    beside(FILLED + OUT, tmp_path)


def test_an_out_of_another_shape_is_said() -> None:
    """Torch resizes what has another shape; what is an argument, too, has the result's."""
    found = ported(
        "import torch\ndef f(a, b):\n    torch.add(a, b, out=a)\n    torch.add(a, a, out=b)\n"
    )
    said = [edit.line for edit in found.edits if edit.rule == "out" and edit.kind == "unproven"]
    assert said == [4]
