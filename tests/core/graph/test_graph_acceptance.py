"""What the graph was to do, and the tests that hold it: they exist, and the page says so.

``python tests/core/graph/test_graph_acceptance.py`` writes the page from acceptance.toml.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TABLE = Path(__file__).with_name("acceptance.toml")
PAGE = ROOT / "docs" / "reference" / "graph-acceptance.md"
HEAD = """---
hide:
  - toc
---

# The graph and its tests

What [the graph](../graph.md) was to do when it was begun, the tests that hold it, and what they do
not hold. Written by `python tests/core/graph/test_graph_acceptance.py`.

| what | held by | open |
|---|---|---|
"""


@cache
def lines() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["line"]
    return found


@cache
def functions(home: str) -> frozenset[str]:
    """Return names of the functions of all test modules of one name."""
    trees = [ast.parse(p.read_text(encoding="utf-8")) for p in (ROOT / "tests").rglob(f"{home}.py")]
    nodes = [node for tree in trees for node in tree.body]
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def page() -> str:
    return HEAD + "".join(
        f"| {line['what']} | {_cell(line['tests'])} | {line.get('open', '')} |\n"
        for line in lines()
    )


def _cell(tests: list[str]) -> str:
    found: dict[str, list[str]] = {}
    for name in tests:
        home, _, test = name.partition("::")
        found.setdefault(home, []).append(test.removeprefix("test_").replace("_", " "))
    return "<br>".join(f"`{home}`: {', '.join(names)}" for home, names in found.items())


@pytest.mark.parametrize("line", lines(), ids=lambda line: line["what"][:40])
def test_a_line_has_tests_that_exist_or_is_open(line: dict[str, Any]) -> None:
    assert line["tests"] or line["open"]
    parts = [(name, *name.split("::")) for name in line["tests"]]
    assert [name for name, home, test in parts if test not in functions(home)] == []


def test_a_name_that_is_no_test_is_not_found() -> None:
    assert "test_a_line_has_tests_that_exist_or_is_open" in functions("test_graph_acceptance")
    assert "lines_that_nobody_wrote" not in functions("test_graph_acceptance")
    assert functions("test_of_no_module") == frozenset()


def test_the_page_is_that_of_the_lines() -> None:
    if not PAGE.parent.exists():
        pytest.skip("the pages are not here")
    assert PAGE.read_text(encoding="utf-8") == page(), "run this file as a script"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
