"""``torch._six.inf`` of torch up to 1.12, which is a number."""

from __future__ import annotations

import math

import numpy as np

from .ports import loaded, ported

SCRIPT = """import torch
from torch._six import inf
def norm(xs, kind=2.0):
    if float(kind) == inf:
        return max(x.abs().max() for x in xs)
    return torch.norm(torch.stack([torch.norm(x, kind) for x in xs]), kind)
given = [torch.ones(3), torch.full((2,), 3.0)]
made = [norm(given), norm(given, inf), inf]
"""


def test_it_is_compared_with_numbers(tmp_path):
    found = ported(SCRIPT)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    made = loaded(found.text, tmp_path)["made"]
    values = [float(one) for one in made]
    np.testing.assert_allclose(values, [math.sqrt(21.0), 3.0, math.inf], rtol=1e-6)
