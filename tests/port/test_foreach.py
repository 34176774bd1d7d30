"""``torch._foreach_mul_`` and the like: averages of teachers, norms of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mpcore_port_runtime as port

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

LISTS = """import torch
from torch import nn
def filled(by):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for number, p in enumerate(net.parameters()):
            p.copy_((torch.arange(p.numel()).float() - number).view(p.shape) / by + 0.3)
    return net
student, teacher = filled(7), filled(5)
ours, theirs = list(student.parameters()), list(teacher.parameters())
made = []
with torch.no_grad():
    torch._foreach_mul_(theirs, 0.9)
    torch._foreach_add_(theirs, ours, alpha=0.1)
    made += [p.clone() for p in theirs]
    torch._foreach_lerp_(theirs, ours, weight=0.25)
    made += [p.clone() for p in theirs]
    torch._foreach_sub_(theirs, 0.5)
    torch._foreach_div_(theirs, [1.0, 2.0, 3.0, 4.0])
    made += [p.clone() for p in theirs]
    made += torch._foreach_mul(theirs, ours) + torch._foreach_sub(theirs, ours, alpha=2)
    made += torch._foreach_add(theirs, 1.5) + torch._foreach_div(theirs, ours)
    made += torch._foreach_lerp(theirs, ours, 0.3) + torch._foreach_abs(theirs)
    made += torch._foreach_sqrt(torch._foreach_abs(theirs)) + torch._foreach_neg(theirs)
    made += torch._foreach_addcmul(theirs, ours, ours, value=0.5)
    made += torch._foreach_addcdiv(theirs, ours, torch._foreach_add(ours, 9.0), value=-0.5)
    torch._foreach_addcmul_(theirs, ours, ours, 0.5)
    torch._foreach_addcdiv_(theirs, ours, torch._foreach_add(ours, 9.0), -0.5)
    made += [p.clone() for p in theirs]
    for order in (1, 2, float("inf")):
        made += torch._foreach_norm(theirs, order)
    torch._foreach_copy_(theirs, ours)
student(torch.ones(2, 3)).pow(2).sum().backward()
grads = [p.grad for p in student.parameters()]
torch._foreach_mul_(grads, torch.tensor(0.5))
made += [p.grad for p in student.parameters()]
made += [p.clone() for p in theirs]
with torch.no_grad():
    torch._foreach_zero_(grads)
made += [p.grad for p in student.parameters()]
"""


def test_functions_on_lists_do_each(tmp_path: Path) -> None:
    text = beside(LISTS, tmp_path).text
    assert "port.foreach_add_(theirs, ours, alpha=0.1)" in text


def test_another_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 1, 2 or inf, got 3"):
        port.foreach_norm([], 3)
