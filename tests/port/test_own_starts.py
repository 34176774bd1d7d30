"""Classes that are made of a layer: how they start, what they call its Parameters, rows of none."""

from __future__ import annotations

import pytest

from .ports import beside, ported

STARTS = """import torch
import torch.nn.functional as F
from torch import nn
made = []
class Words(nn.Embedding):
    def reset_parameters(self):
        nn.init.constant_(self.weight, 0.5)
    def forward(self, x, back=False):
        if back:
            return torch.matmul(x, self.weight.transpose(0, 1))
        return super().forward(x)
class Plain(nn.Linear):
    def __init__(self, n):
        self.by = 3.0
        super().__init__(n, 2)
        self.bias.data.fill_(7.0)
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
class Twice(Plain):
    def reset_parameters(self):
        super().reset_parameters()
        self.weight.data.fill_(self.by)
        self.bias.data.zero_()
class Norm(nn.LayerNorm):
    def reset_parameters(self):
        nn.init.constant_(self.weight, 3.0)
        nn.init.zeros_(self.bias)
class InFloats(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps)
class Batch(nn.BatchNorm1d):
    def reset_parameters(self):
        self.weight.data.fill_(2.0)
        self.bias.data.fill_(0.25)
class Scaled(nn.Embedding):
    def __init__(self, n, d):
        super().__init__(n, d)
        self.weight = nn.Parameter(torch.full((n, d), 0.25))
    def forward(self, x):
        return super().forward(x) * self.embedding_dim
x = torch.arange(6).view(2, 3)
words = Words(8, 4)
made += [words(x), words(words(x), back=True), Twice(3)(x.float())]
made += [Norm(3)(x.float()), InFloats(3)(x.float()), Batch(3)(x.float()), Scaled(8, 2)(x)]
"""


def test_layers_of_a_script_start_and_are_read_as_in_torch(tmp_path):
    found = beside(STARTS, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_a_layer_that_starts_itself_keeps_its_base():
    text = ported(STARTS).text
    assert "class InFloats(port.LayerNorm)" in text
    assert "class Plain(port.starting(nn.Dense))" in text
    assert "class Twice(Plain)" in text


ROWS = """import torch
made = []
held, rows, ids = torch.tensor([]), torch.empty(0), torch.LongTensor()
for turn in range(2):
    held = torch.cat([held, torch.ones(2, 3) * turn], dim=0)
    rows = torch.cat((rows, torch.arange(3)))
    ids = torch.cat((ids, torch.arange(4).view(2, 2)), axis=0)
made += [held, rows, ids, torch.cat([torch.tensor([]), torch.tensor([])])]
made += [int(one.dtype == torch.float32) for one in (held, rows, ids)]
"""


def test_rows_begin_with_none(tmp_path):
    beside(ROWS, tmp_path)


@pytest.mark.parametrize("start", ["torch.zeros(0, 3)", "torch.ones(1, 3)"])
def test_rows_of_one_rank_are_joined_as_before(start):
    script = f"import torch\nheld = {start}\nheld = torch.cat([held, torch.ones(2, 3)])\n"
    assert "mint.cat([held" in ported(script).text
