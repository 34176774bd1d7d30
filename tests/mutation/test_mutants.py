"""Mutants: what changes, what is left alone, and that the same seed draws the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutants import choose, mutants

ROOT = Path(__file__).parents[2]

CASES = {
    "comparison": ("a <= b", "(a < b)"),
    "arithmetic": ("a * b", "(a / b)"),
    "boolean": ("a and b", "(a or b)"),
    "constant": ("2.5", "(5.0)"),
    "returned value": ("return a", "return None"),
    "removed statement": ("f()", "pass"),
    "swapped arguments": ("f(a, b, c)", "(f(b, a, c))"),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_changes_what_it_says(kind):
    before, after = CASES[kind]
    inside = before if kind in ("returned value", "removed statement") else f"x = {before}"
    source = f"def g(a, b, c):\n    é = 'two bytes'; {inside}\n".encode()
    found = [mutant for mutant in mutants(source, "g.py") if mutant.kind == kind]
    assert [(mutant.before, mutant.after, mutant.line) for mutant in found] == [(before, after, 2)]
    assert found[0].applied(source).decode() == source.decode().replace(before, after)


@pytest.mark.parametrize(
    "source",
    [
        '"""Words with 1 + 1."""\n',
        "x: int | float\n",
        "def f(x: int | None) -> int | None: ...\n",
        'msg = "a" + "b"\n',
        "raise ValueError(1 + 1, 2)\n",
        'x = f"{1 + 1}"\n',
        "if TYPE_CHECKING:\n    x = 1 + 1\n",
        "x = isinstance(a, b)\n",
        "def f():\n    return None\n",
    ],
)
def test_what_no_test_should_see_is_left_alone(source):
    assert list(mutants(source.encode(), "g.py")) == []


def test_the_same_seed_draws_the_same_and_every_mutant_is_python():
    scope = ("mpcore/step", "mpcore/scaling")
    drawn = choose(ROOT, 3, 30, scope)
    assert drawn == choose(ROOT, 3, 30, scope)
    assert drawn != choose(ROOT, 4, 30, scope)
    assert len(set(drawn)) == 30
    for mutant in drawn:
        source = (ROOT / mutant.file).read_bytes()
        changed = mutant.applied(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
