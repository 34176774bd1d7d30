"""Each border has tests that exist, each promise of the page a border; the page of both.

``python tests/borders/test_borders.py`` writes docs/reference/borders.md from borders.toml.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("borders.toml")
PAGE = ROOT / "docs" / "reference" / "borders.md"
PROMISES = ROOT / "docs" / "guarantees.md"
NAMES = {"torch": "torch", "tensorflow": "tf.keras", "mindspore": "MindSpore"}
HEAD = """---
hide:
  - toc
---

# Borders and their tests

Where other people's code meets a prepared model, and the tests that hold it there, in each
framework. What is promised is in [Guarantees](../guarantees.md). A name after "does" is a thing
that `tests/borders/fuzz.py` does to prepared models. Written by
`python tests/borders/test_borders.py`.
"""


@cache
def borders() -> list[dict[str, Any]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))["border"]


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@cache
def files() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found.setdefault(path.stem, []).append(path)
    return found


def things(framework: str) -> frozenset[str]:
    here = TABLE.parent
    names = ("fuzz", f"things_{framework}", f"things_{framework}_tools")
    return frozenset().union(*(functions(here / f"{name}.py") for name in names))


def exists(framework: str, name: str) -> bool:
    home, _, test = name.partition("::")
    if home == "fuzz":
        return test in things(framework)
    return any(test in functions(path) for path in files().get(home, []))


def page() -> str:
    lines = [HEAD, f"| border | {' | '.join(NAMES.values())} |", "|---" * 4 + "|"]
    for border in borders():
        cells = [border["what"], *(_cell(border[framework]) for framework in NAMES)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(tests: list[str] | str) -> str:
    if isinstance(tests, str):
        return f"none: {tests.strip('()')}"
    found: dict[str, list[str]] = {}
    for name in tests:
        home, _, test = name.partition("::")
        found.setdefault("does" if home == "fuzz" else f"`{home}`", []).append(
            f"`{test}`" if home == "fuzz" else test.removeprefix("test_").replace("_", " ")
        )
    return "<br>".join(f"{home}: {', '.join(names)}" for home, names in found.items())


@pytest.mark.parametrize("border", borders(), ids=lambda border: border["what"][:40])
def test_its_tests_exist_in_every_framework(border):
    for framework in NAMES:
        tests = border[framework]
        if isinstance(tests, str):  # why there is none
            assert tests.startswith("(")
            assert tests.endswith(")")
            continue
        assert tests
        assert [name for name in tests if not exists(framework, name)] == []


def test_every_promise_is_held_by_a_border():
    if not PROMISES.exists():
        pytest.skip("the pages are not here")
    held = [name for border in borders() for name in border.get("guarantees", ())]
    rows = [
        f"{cells[1].strip()}: {cells[2].strip()}".replace("'", "\u2019")
        for cells in (line.split("|") for line in PROMISES.read_text().splitlines())
        if len(cells) > 5 and cells[1].strip() not in ("in", "---")
    ]
    assert [row for row in rows if not any(row.startswith(name) for name in held)] == []
    assert [name for name in held if not any(row.startswith(name) for row in rows)] == []


def test_the_page_is_that_of_the_table():
    if not PAGE.parent.exists():
        pytest.skip("the pages are not here")
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/borders/test_borders.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
