"""Sizes that are tensors of no axes: torch takes them for numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

SCORES = """import numpy as np
import torch

made = []


def scored(rows, columns, values, many):
    count = rows[-1] + 1
    scores = torch.full((count, many), -np.inf)
    scores[rows, columns] = values
    return scores, values.new_full((count, 2), 3.0), torch.full((count,), 2)


rows = torch.tensor([0, 0, 1, 2])
made += [*scored(rows, torch.tensor([1, 2, 0, 3]), torch.arange(4.0), 4)]
"""


def test_a_table_of_as_many_rows_as_a_tensor_says(tmp_path: Path) -> None:
    beside(SCORES, tmp_path)
