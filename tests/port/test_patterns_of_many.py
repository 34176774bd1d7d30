"""einops_exts: patterns of several tensors at once, and checks of shapes."""

from __future__ import annotations

import pytest

from .ports import compare, ported

SPLIT = """import torch
from einops_exts import check_shape, rearrange_many, reduce_many, repeat_many

made = []
qkv = torch.arange(24.0).view(2, 12, 1).chunk(3, dim=1)
q, k, v = rearrange_many(qkv, "b (h c) n -> b h c n", h=2)
made += [q, k, v, *repeat_many((q, k), "b h c n -> b h c (n m)", m=2)]
made += [*reduce_many([q, v], "b h c n -> b h", reduction="sum")]
made.append(check_shape(q, "b h c n", h=2).sum())
"""
# What einops_exts 0.0.4 makes of it, by hand.
BY_HAND = """import torch
made = []
qkv = torch.arange(24.0).view(2, 12, 1).chunk(3, dim=1)
q, k, v = (one.reshape(2, 2, 2, 1) for one in qkv)
made += [q, k, v, q.repeat(1, 1, 1, 2), k.repeat(1, 1, 1, 2), q.sum((2, 3)), v.sum((2, 3)), q.sum()]
"""


def test_patterns_of_several_tensors(tmp_path):
    found = ported(SPLIT)
    assert "einops_exts" not in found.text
    assert found.said.kind == "runs"
    compare(BY_HAND, found.text, tmp_path)


def test_a_shape_that_is_another_raises(tmp_path):
    found = ported(SPLIT.replace('c n", h=2).sum', 'c n", h=3).sum'))
    with pytest.raises(ValueError, match="einops"):
        compare(BY_HAND, found.text, tmp_path)
