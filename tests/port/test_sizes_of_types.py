"""torch's old types of tensors: a `torch.Size` means sizes, by whatever name it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path


def test_sizes_come_by_names_parts_and_sums(tmp_path: Path) -> None:
    """They were taken for values: `ones * torch.Tensor(size)` ran, with other numbers."""
    script = """
import torch
def made_of(t, n):
    size = t.size()
    whole = torch.Tensor(size).fill_(2)
    one_hot = torch.FloatTensor(torch.Size((n, 2))).zero_()
    part = torch.LongTensor(t.shape[1:]).zero_()
    more = torch.FloatTensor(size + (2,)).fill_(1)
    other = t.new(size).zero_()
    values = torch.Tensor((1, 2)) + torch.Tensor([3, 4])
    return [whole, one_hot, part, more, other, values]
made = made_of(torch.ones(2, 3), 4)
"""
    beside(script, tmp_path)


def test_sizes_that_are_handed_in_are_unproven() -> None:
    """Nobody sees whether a tuple is handed in, or a tensor's size."""
    script = "import torch\ndef zeros(size):\n    return torch.FloatTensor(size).zero_()\n"
    said = [edit for edit in ported(script).edits if edit.kind == "unproven"]
    assert [edit.line for edit in said] == [3]


def test_a_type_that_is_handed_in_is_known_by_its_name(tmp_path: Path) -> None:
    """pix2pix's loss makes its labels so: of sizes it took the values."""
    script = """
import torch
from torch import nn
class GANLoss(nn.Module):
    def __init__(self, label=1.0, tensor=torch.FloatTensor):
        super().__init__()
        self.label, self.Tensor, self.var = label, tensor, None
        self.loss = nn.MSELoss()
    def target(self, x):
        if self.var is None or self.var.numel() != x.numel():
            real = self.Tensor(x.size()).fill_(self.label)
            self.var = torch.autograd.Variable(real, requires_grad=False)
        return self.var
    def __call__(self, x):
        return self.loss(x[-1], self.target(x[-1]))
loss = GANLoss(0.5)
made = [loss([torch.arange(4.0)]), loss([torch.ones(2, 1)]), loss.target(torch.ones(2))]
"""
    assert not [edit for edit in beside(script, tmp_path).edits if edit.kind == "refused"]
