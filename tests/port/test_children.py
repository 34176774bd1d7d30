"""The porter's own walks over libcst's trees see what libcst's do."""

from __future__ import annotations

import ast
import inspect

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from mpcore_port import engine, notebook
from mpcore_port.children import children_of
from mpcore_port.lines import apart
from mpcore_port.places import placed

SAMPLE = '''
async def f(a, /, b: int = 1, *args, c=2, **kw) -> None:
    """Doc."""
    async with a as b, c: x = f"{a!r:>{b}} {c=}"; del x
    match a:
        case {"k": [1, *rest]} | None if (y := 2): pass
        case P(x=1) as z: return await z
    try:
        print(*a, **{**kw, "é": lambda q: q @ ~q})
    except* ValueError as e:
        raise E from e
    else: x[1:2, ::3] += (yield)
    finally:  # why
        assert not x, [i for i in a if i async for j in b]


@a.b(c)
class C(D, metaclass=M):
    x: int

    from .. import (m as n,)
'''
TEXTS = {"sample": SAMPLE, "": "", "engine": inspect.getsource(engine)}
TEXTS["notebook"] = inspect.getsource(notebook).replace("\n", "\r\n")


def below(node):
    yield node
    for child in node.children:
        yield from below(child)


@pytest.mark.parametrize("name", TEXTS)
def test_children_are_those_of_libcst(name):
    for node in below(cst.parse_module(TEXTS[name])):
        ours, theirs = children_of(node), node.children
        assert [id(child) for child in ours] == [id(child) for child in theirs], type(node)


@pytest.mark.parametrize("name", TEXTS)
def test_places_are_those_of_libcst(name):
    module = cst.parse_module(TEXTS[name])
    code, places = placed(module)
    assert code == TEXTS[name]
    theirs = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    assert {node: places[node] for node in theirs} == dict(theirs)


@pytest.mark.parametrize(
    "text",
    [
        "if a:\n    pass\nelse: import torch.cuda\n",
        "x = 'é'; import torch.cuda\n",
        "x = 1; \\\n  import torch.cuda\n",
    ],
)
def test_lines_that_are_shared_are_taken_apart(text):
    made = apart(text, "mindspore")
    assert made != text
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(text))


def test_a_line_of_its_own_stays():
    text = "def f(x: torch.Tensor): \\\n        # torch\n    return {1: torch.a}\n"
    assert apart(text, "mindspore") == text
