"""How long a backend is: lines of code, without docstrings, comments and blank lines."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def lines_of_code(text: str) -> int:
    texts: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts |= set(range(node.lineno, node.end_lineno + 1))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            used |= set(range(token.start[0], token.end[0] + 1))
    return len(used - texts)


def test_docstrings_comments_and_blank_lines_do_not_count():
    assert lines_of_code('"""A\nb."""\n\n# c\nx = (\n    1,  # d\n)\ny = """\n"""\n') == 5


@pytest.mark.parametrize(
    ("files", "below"),
    [
        ("backends/mpcore_jax/*.py", 1000),
        ("tests/backends/third_party/mpcore_toy/__init__.py", 150),
    ],
    ids=["JAX, with compare's driver", "the template of docs/backend.md, without its kit"],
)
def test_a_backend_stays_small(files, below):
    assert (
        0
        < sum(lines_of_code(path.read_text(encoding="utf-8")) for path in ROOT.glob(files))
        < below
    )
