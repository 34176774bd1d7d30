"""What is said of a port: whether it runs, and what hangs on a line."""

from __future__ import annotations

import pytest

from mpcore_port.reached import Reached
from mpcore_port.rule import Edit
from mpcore_port.source import Source
from mpcore_port.status import status_of

HEAD = "import argparse\np = argparse.ArgumentParser()\n"


def said(text: str, *kinds: tuple[int, str]) -> str:
    """Return the status of ``text`` with edits of these kinds at the first word of these lines."""
    lines = text.splitlines()
    edits = []
    for line, kind in kinds:
        column = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        edits.append(Edit("a.py", line, column, kind, "r", "x", "x", "why"))  # type: ignore[arg-type]
    return status_of(Source("a.py", text), edits).text


def test_each_sentence_says_what_was_checked_and_no_more() -> None:
    assert said("a()\n", (1, "exact"), (1, "changed")) == "runs"
    assert said("a()\nb()\n", (1, "unproven"), (2, "unproven"), (2, "unproven")) == (
        "runs, 2 lines unproven"
    )
    assert said("a()\n", (1, "unproven")) == "runs, 1 line unproven"
    assert said("a()\n", (1, "refused")) == "does not run"
    assert said("if a:\n    b()\n", (2, "refused")) == "runs unless line 2 is reached"
    many = "if a:\n" + "    b()\n" * 7
    lines = [(line, "refused") for line in range(2, 9)]
    assert said(many, *lines) == "runs unless line 2, 3, 4, 5 or 3 more is reached"


SURE = {
    "main": "def f():\n    b()\n\nif __name__ == '__main__':\n    f()\n",
    "method": "class A:\n    def run(self):\n        b()\n\na = A()\na.run()\n",
    "constructor": "class A:\n    def __init__(self):\n        b()\n\nA()\n",
    "forward": "class A:\n    def forward(self, x):\n        b()\n\nfor x in y:\n    A()(x)\n"
    "a = A()\na(1)\n",
    "loop": "for x in y:\n    with z:\n        try:\n            b()\n        finally:\n"
    "            c()\n",
    "option": f"{HEAD}p.add_argument('--fast', default=True)\nargs = p.parse_args()\n"
    "if args.fast:\n    b()\n",
    "constant": "FAST = True\nif FAST and not False:\n    b()\n",
    "else": f"{HEAD}p.add_argument('-x', '--to-cpu', action='store_true')\nargs = p.parse_args()\n"
    "if args.to_cpu:\n    pass\nelse:\n    b()\n",
}
UNSURE = {
    "never called": "def f():\n    b()\n",
    "unknown": "if a:\n    b()\n",
    "flag": f"{HEAD}p.add_argument('--slow', action='store_true')\nargs = p.parse_args()\n"
    "if args.slow:\n    b()\n",
    "required": f"{HEAD}p.add_argument('--slow', required=True)\nargs = p.parse_args()\n"
    "if args.slow:\n    b()\n",
    "handler": "try:\n    a()\nexcept ValueError:\n    b()\n",
    "constant twice": "FAST = True\nFAST = False\nif FAST:\n    b()\n",
    "after the end": "def f():\n    return 1\n    b()\n\nf()\n",
    "case": "match x:\n    case 1:\n        b()\n",
    "other class": "class A:\n    def run(self):\n        b()\n\na.run()\n",
}


@pytest.mark.parametrize("name", SURE)
def test_what_a_plain_run_comes_to_stops_it(name: str) -> None:
    line = next(i for i, s in enumerate(SURE[name].splitlines(), 1) if s.strip() == "b()")
    assert said(SURE[name], (line, "refused")) == "does not run"


@pytest.mark.parametrize("name", UNSURE)
def test_what_a_plain_run_may_leave_out_is_named_by_its_line(name: str) -> None:
    line = next(i for i, s in enumerate(UNSURE[name].splitlines(), 1) if s.strip() == "b()")
    assert said(UNSURE[name], (line, "refused")) == f"runs unless line {line} is reached"


def test_a_refused_import_stops_where_its_name_is_used() -> None:
    text = "import bad as b, os\n\ndef f():\n    return b.x\n"
    assert said(text, (1, "refused")) == "runs unless line 4 is reached"
    assert said(f"{text}print(b)\n", (1, "refused")) == "does not run"
    assert said("import bad\n", (1, "refused")) == "runs"  # nothing uses what stands for it
    assert said("import bad\n__all__ = ['bad']\n", (1, "refused")) == (
        "runs unless line 1 is reached"
    )


def test_a_name_in_a_table_is_not_met_where_the_table_is_made() -> None:
    table = "kinds = {'adam': Adam, 'lamb': nn.Lamb, 'sgd': make()}\n"
    reached = Reached(table + "kinds['adam']()\n")
    assert not reached.surely(1, table.index("nn.Lamb"))
    assert reached.surely(1, table.index("make()"))
    assert reached.surely(2, 0)


def test_parts_of_a_line_that_are_not_evaluated_are_not_reached() -> None:
    text = "x = (lambda: b()) or (c() if d else e())\nf(b() or c())\n"
    reached = Reached(text)
    assert reached.surely(2, 2)
    assert not reached.surely(2, 9)
    assert not reached.surely(1, text.index("b()"))
    assert not reached.surely(1, text.index("c() if"))
    assert not reached.surely(1, 1)  # nothing begins there, and not all of the line is sure
