"""Labels beside boxes in one row: torch joins whole numbers and others as the widest dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ports import beside, ported

if TYPE_CHECKING:
    from pathlib import Path

ROWS = """import torch

made = []


def rows(target):
    boxes, labels = target["boxes"], target["labels"]
    return torch.cat((boxes, labels.unsqueeze(-1)), 1)


def scored(boxes, idx):
    return torch.stack([boxes[:, 0], idx])


found = {"boxes": torch.ones(3, 4), "labels": torch.arange(3)}
made += [rows(found), scored(found["boxes"] / 2, found["labels"])]
counts = torch.arange(3)
made.append(torch.cat([counts, counts.float() / 2]))
made.append(torch.cat((counts[:, None], found["boxes"]), dim=1))
"""


def test_labels_are_joined_with_boxes(tmp_path: Path) -> None:
    found = beside(ROWS, tmp_path)
    assert "port.joined((boxes, labels.unsqueeze(-1)), 1)" in found.text
    assert not [edit for edit in found.edits if "dtype" in edit.reason and edit.kind != "exact"]


WIDTHS = """import torch

made = []
x = torch.linspace(-1, 1, 6).view(2, 3)
low = x.half()
wide = x.to(torch.float64)
made.append(torch.cat([low, x], 1).float() * 2)
made.append(torch.cat((x, wide.t().reshape(2, 3)), dim=0))
made.append(torch.stack([x.half().detach(), x.bfloat16()]).sum())
made.append(torch.stack([torch.zeros(2, 3, dtype=torch.float64), x]))
made.append(torch.cat([low, x.half()]).float())
"""


def test_floats_of_several_widths_are_joined_as_the_widest(tmp_path: Path) -> None:
    found = beside(WIDTHS, tmp_path)
    assert found.text.count("port.joined") == 2
    assert found.text.count("port.stacked") == 2


@pytest.mark.parametrize(
    "line",
    [
        "torch.cat((x, skip), 1)",
        "torch.cat((cls_token, x), 1)",
        "torch.cat([a_idx, b_idx])",
        "torch.cat([boxes, labels.float()])",
        "torch.stack([x, skip])",
    ],
)
def test_what_is_of_one_kind_takes_mindspores_own(line: str) -> None:
    names = "x, skip, cls_token, a_idx, b_idx, boxes, labels"
    found = ported(f"import torch\ndef f({names}):\n    return {line}\n")
    assert "port." not in found.text
