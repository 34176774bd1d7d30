"""What the signatures of the backends tell a reader."""

import ast
from pathlib import Path

import pytest

BACKENDS = Path(__file__).parents[2] / "backends"
LIMIT = 0.25  # of annotated parameters; what passes through untouched has no other type


def parameters(tree):
    """Yield the annotation of each annotated parameter of each function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            each = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            yield from (arg.annotation for arg in each if arg is not None and arg.annotation)


def is_any(annotation):
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def share_of_any(sources):
    """Return the share of parameters that are exactly ``Any``."""
    found = [is_any(each) for source in sources for each in parameters(ast.parse(source))]
    return sum(found) / len(found)


def test_any_alone_is_counted():
    source = "def f(self, a: Any, *b: Any, c: dict[str, Any], d: int = 1) -> Any: ..."
    assert share_of_any([source]) == 0.5
    assert share_of_any(["async def f(a: Any, /, *, b: Any): ..."]) == 1.0


@pytest.mark.parametrize("name", ["numpy", "torch", "tensorflow", "mindspore"])
def test_parameters_of_a_backend_have_types(name):
    files = sorted((BACKENDS / f"mpcore_{name}").rglob("*.py"))
    assert files
    assert share_of_any(path.read_text(encoding="utf-8") for path in files) < LIMIT
