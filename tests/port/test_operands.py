"""What stands in a call's place keeps its brackets where an operator or a method is around it."""

from __future__ import annotations

import libcst as cst
import pytest

from mpcore_port.operands import as_operand

from .ports import beside

SCRIPT = """
import torch
from torch.autograd import Variable
made = []
x = torch.linspace(-1.0, 2.0, 9).view(3, 3)
w = torch.linspace(0.5, 3.0, 9).view(3, 3)
made += [torch.diagonal(x @ w), torch.diagonal(-x), torch.diagonal(x - w, 1)]
made += [torch.ravel(x + w), torch.t(x - w), torch.clone(x - w) * 2]
made += [torch.masked_fill(x - w, x > 0, 1.0), torch.masked_fill(x if x.ndim else w, w > 1, 7.0)]
made += [Variable(x + w).mean(), 2 * Variable(x + w), Variable(x - w) ** 2, -Variable(x + w)]
made += [torch.LongTensor([1, 2]).float() / 2, Variable(x > w).float()]
made += [Variable(x + w), x - Variable(x - w), x * Variable(x - w)[0]]
"""


def test_operands_are_computed_first(tmp_path):
    found = beside(SCRIPT, tmp_path)
    assert not [edit for edit in found.edits if edit.kind in ("refused", "unproven")]
    assert "Variable" not in found.text.partition("made = []")[2]


@pytest.mark.parametrize(
    ("around", "inside", "made"),
    [
        ("f(x).mean()", "a + b", "(a + b).mean()"),
        ("2 * f(x)", "a + b", "2 * (a + b)"),
        ("2 + f(x)", "a * b", "2 + a * b"),
        ("2 - f(x)", "a - b", "2 - (a - b)"),
        ("f(x) - 2", "a - b", "a - b - 2"),
        ("f(x) ** 2", "-a", "(-a) ** 2"),
        ("2 ** f(x)", "-a", "2 ** (-a)"),
        ("-f(x)", "a ** 2", "-a ** 2"),
        ("not f(x)", "a == b", "not a == b"),
        ("not f(x)", "a and b", "not (a and b)"),
        ("f(x) < 2", "a == b", "(a == b) < 2"),
        ("g(f(x))", "a if b else c", "g(a if b else c)"),
        ("f(x)[0]", "a if b else c", "(a if b else c)[0]"),
        ("f(x)(0)", "a or b", "(a or b)(0)"),
        ("f(x) if p else q", "lambda: 0", "(lambda: 0) if p else q"),
    ],
)
def test_brackets_are_where_the_place_asks_for_them(around, inside, made):
    tree = cst.parse_expression(around)

    class Change(cst.CSTTransformer):
        def __init__(self):
            super().__init__()
            self.above = []

        def on_visit(self, node):
            self.above.append(node)
            return True

        def on_leave(self, old, new):
            self.above.pop()
            if isinstance(old, cst.Call) and getattr(old.func, "value", "") == "f":
                return as_operand(old, cst.parse_expression(inside), (self.above or [None])[-1])
            return new

    assert cst.Module([]).code_for_node(tree.visit(Change())) == made
