"""What the values of a script are, where they depend on one another."""

from __future__ import annotations

import random

import libcst as cst
import pytest

from mpcore_port.names import Names
from mpcore_port.values import UNKNOWN, Values


def kinds_of(text: str) -> dict[str, str]:
    """Return the kind of each name that the last line, a call of ``show``, is given."""
    module = cst.parse_module(text)
    values = Values(Names(module))
    shown = module.body[-1].body[0].value
    return {cst.Module([]).code_for_node(a.value): values.kind(a.value) for a in shown.args}


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["x = torch.zeros(2)", "for i in range(3):", "    x = x * 2"], "tensor"),
        (["x = torch.zeros(2)", "for i in range(3):", "    y = x", "    x = y"], "tensor"),
        (["x = torch.zeros(2)", "x = thing(x)"], UNKNOWN),
        (["x = 1", "while x:", "    x = y", "    y = x"], "neutral"),
        (["while True:", "    x = y", "    y = x"], UNKNOWN),
    ],
)
def test_a_circle_is_what_enters_it(lines, kind):
    assert kinds_of("\n".join(["import torch", *lines, "show(x)"])) == {"x": kind}


def test_two_hundred_values_in_one_circle_end():
    """There are some 2**100 ways through them; what lies too deep is not known."""
    draw, names = random.Random(1), [f"x{i}" for i in range(40)]
    lines = ["import torch", *(f"{name} = torch.zeros(2)" for name in names), "while True:"]
    for _ in range(200):
        to, one, two = draw.choices(names, k=3)
        lines.append(f"    {to} = {one} + {two}")
    found = kinds_of("\n".join([*lines, f"show({', '.join(names)})"]))
    assert set(found.values()) <= {"tensor", UNKNOWN}
