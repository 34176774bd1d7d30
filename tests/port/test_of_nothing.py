"""Sums, means and questions of tensors without elements, which another function has filtered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ports import beside

if TYPE_CHECKING:
    from pathlib import Path

FILTERED = """import torch
def kept(boxes, least):
    return {"boxes": boxes[boxes[:, 0] > least], "scores": boxes[:, 1][boxes[:, 1] > least]}
boxes = torch.arange(6.0).reshape(3, 2)
weight = torch.ones(2, requires_grad=True)
made = []
for least in (100.0, 1.0):
    found = kept(boxes * weight.detach(), least)
    made += [found["boxes"].sum(), found["scores"].mean(), found["scores"].gt(2).any()]
    made += [found["boxes"].sum(0), torch.full((0, 3), 2.0).sum(), found["boxes"].pow(2).sum()]
"""


def test_what_another_function_left_nothing_of_sums_to_nothing(tmp_path: Path) -> None:
    beside(FILTERED, tmp_path)
