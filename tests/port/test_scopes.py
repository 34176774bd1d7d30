"""What a name is bound to: as Python has it, and as libcst's own scopes have it."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import (
    BuiltinAssignment,
    ExpressionContext,
    ExpressionContextProvider,
    ImportAssignment,
    MetadataWrapper,
    ScopeProvider,
)

from mpcore_port.names import Names

HERE = Path(__file__).parent
FILES = sorted([*HERE.glob("scripts/**/*.py"), *HERE.glob("cases/*/*/before.py")])
HARD = """\
import a, b
from c import d as e

class A(a.B, metaclass=b):
    a = 1
    b = property(lambda self: a)

    @b.setter
    def b(self, value: a = a, *rest: b) -> b:
        def inner(a=a, *, d=b):
            nonlocal value
            return a, d, e, value
        return inner, a, b

    e = [e for e in e if a]
    f = {a: b for a in b for b in a}

def outer(x, e=e):
    global g
    import g
    h = lambda a, b=b: (a, b, x, g)
    if (e := x) and [a for _ in x]:
        return h
    with a as (i, j), b as outer.k:
        pass
    try:
        del i
    except e as error:
        raise error
    return g
"""


def _differ(text: str) -> tuple[int, list[str]]:
    """Return how many names were looked up, and those that libcst finds bound otherwise."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    scopes, contexts = wrapper.resolve(ScopeProvider), wrapper.resolve(ExpressionContextProvider)
    names, count, wrong = Names(wrapper.module), 0, []
    for node, scope in scopes.items():
        if not isinstance(node, cst.Name) or contexts.get(node) is not ExpressionContext.LOAD:
            continue
        parent = names.parents.get(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            continue
        theirs = [one for one in scope[node.value] if not isinstance(one, BuiltinAssignment)]
        ours = names.scope(node).find(node.value)
        imports = {id(one.node) for one in theirs if isinstance(one, ImportAssignment)}
        count += 1
        if {id(one.node) for one in ours if one.kind == "import"} != imports or (
            bool(ours) != bool(theirs)
        ):
            wrong.append(f"{node.value}: {len(ours)} bindings, libcst has {len(theirs)}")
    return count, wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: "-".join(path.parts[-2:]))
def test_names_are_bound_as_libcst_binds_them(path: Path) -> None:
    count, wrong = _differ(path.read_text(encoding="utf-8"))
    assert count
    assert wrong == []


def test_hard_cases_are_bound_as_libcst_binds_them() -> None:
    count, wrong = _differ(HARD)
    assert count > 40
    assert wrong == []


def test_walrus_in_a_comprehension_is_bound_around_it() -> None:
    _, wrong = _differ("x = [(y := one) for one in (1, 2)]\nprint(y)\n")
    assert wrong == ["y: 1 bindings, libcst has 0"]  # libcst 1.9 leaves it in the comprehension


@pytest.mark.parametrize(
    ("text", "qualified"),
    [
        ("import torch\ndef f(torch=torch):\n    pass\n", "torch"),
        ("import torch\nclass A:\n    torch = 1\n    @torch\n    def f(self): ...\n", None),
        ("import torch\nclass torch(torch):\n    torch = 1\n", "torch"),
    ],
)
def test_default_decorator_and_base_are_looked_up_around_the_definition(
    text: str, qualified: str | None
) -> None:
    module = cst.parse_module(text)
    names = Names(module)
    found = [
        node
        for node, parent in names.parents.items()
        if isinstance(node, cst.Name)
        and isinstance(parent, (cst.Param, cst.Decorator, cst.Arg))
        and node is not getattr(parent, "name", None)
    ]
    assert [names.qualified(node) for node in found] == [qualified]
