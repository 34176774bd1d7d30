"""Values with leading axes of one that are set into a part of a tensor."""

from __future__ import annotations

import pytest

from .ports import beside, compare, ported

ROWS = """import torch
class Samples:
    def __init__(self, size):
        self.held = torch.zeros((4, size))
        for i in range(4):
            self.held[i] = torch.full((1, size), 2.0) * 3
        self.held, self.other = self.held.cpu(), 0
def filled(v):
    x, row = torch.zeros(3, 4), v.view(1, 4)
    x[0] = row
    x[1] = torch.arange(4.0).unsqueeze(0)
    x[2, 1:] = torch.ones(1, 1, 3)
    y = torch.zeros(2, 3)
    y[:, 0] = torch.ones(1, 2)
    y[[0, 1]] = torch.ones(1, 3)
    z = torch.zeros(3, 2, 4)
    z[1] = torch.ones(1, 4)
    z[0:2] = torch.ones(1, 2, 4)
    return x, y, z
made = [Samples(3).held, *filled(torch.arange(4.0))]
"""


def test_a_row_is_set_without_the_leading_axes(tmp_path):
    found = ported(ROWS)
    compare(ROWS, found.text, tmp_path, rtol=0, atol=0)
    assert {edit.kind for edit in found.edits} <= {"exact", "unproven"}
    assert "x[0] = row[0]" in found.text
    assert "z[0:2] = ops.ones((1, 2, 4))" in found.text  # a range keeps the axis


@pytest.mark.parametrize(
    "line",
    [
        "held = [None] * 2; held[0] = torch.zeros(1, 3)",
        "held = {}; held[n] = torch.zeros(1, 3)",
        "held = numpy.zeros((2, 3)); held[0] = torch.zeros(1, 3)",
        "held = torch.zeros(2, 3); held[0] = torch.zeros(n, 3)",
        "held = torch.zeros(2, 3); held['a'] = torch.zeros(1, 3)",
    ],
)
def test_what_is_no_row_of_a_tensor_keeps_its_value(line):
    script = f"import torch\nimport numpy\ndef f(n):\n    {line}\n    return held\n"
    found = ported(script)
    assert not [edit for edit in found.edits if edit.rule == "row"]
    assert "3))[0]" not in found.text


def test_a_row_of_what_is_not_known_is_unproven():
    found = ported("import torch\ndef f(held, i):\n    held[i] = torch.zeros(1, 3)\n")
    assert [edit.line for edit in found.edits if edit.kind == "unproven"] == [3]


PLACES = """import torch
x = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -3.0]])
rows, columns = torch.where(x > 0)
made = [rows, columns, torch.where(x > 9)[0], torch.where(condition=x[0] > 0)[0], torch.where(x)[1]]
made += [torch.where(x > 0, x, x * 2), torch.where(x > 0, 1.0, x), x[torch.where(x.sum(1) > 0)[0]]]
y = x * 1
y[torch.where(x > 0)] = 7
made += [y, torch.tensor(len(torch.where(x > 9)[0]))]
"""


def test_where_of_a_condition_alone_gives_places(tmp_path):
    assert beside(PLACES, tmp_path).text.count("port.true_places(") == 7
