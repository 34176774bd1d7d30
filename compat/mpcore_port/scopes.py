"""Scopes and bindings, and small questions about nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.places import spoken, written

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = [
    "Binding",
    "Scope",
    "alias_text",
    "code_of",
    "dotted",
    "expression",
    "in_front",
    "parsed",
    "string_of",
    "target_names",
    "without",
]


def dotted(node: cst.CSTNode) -> str:
    """Return ``"a.b.c"`` for a chain of attributes on a name, else ``""``."""
    parts: list[str] = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


def code_of(node: cst.CSTNode) -> str:
    """Return the code of a node, without the lines around it."""
    if type(node) is cst.Name and not node.lpar:
        return node.value
    code = spoken(node)
    return (written(node) if code is None else code).strip()


@lru_cache(maxsize=4096)
def expression(code: str) -> cst.BaseExpression:
    """Return parsed code of a rule; the same node each time, as none is ever changed."""
    return parsed(code)


def parsed(code: str) -> cst.BaseExpression:
    """Return parsed code; what goes over several lines gets the brackets that it stood in."""
    try:
        return cst.parse_expression(code)
    except cst.ParserSyntaxError:
        if "\n" not in code:
            raise
        return cst.parse_expression(f"({code})")


def alias_text(alias: cst.ImportAlias) -> str:
    """Return ``"name"`` or ``"name as other"``, without commas and comments."""
    name = dotted(alias.name)
    return f"{name} as {code_of(alias.asname.name)}" if alias.asname is not None else name


def without(args: Sequence[cst.Arg], dropped: Collection[cst.Arg]) -> list[cst.Arg]:
    """Return ``args`` without some; the new last one gets the comma of the old last one."""
    kept = [arg for arg in args if not any(arg is one for one in dropped)]
    if kept and args[-1] is not kept[-1]:
        kept[-1] = kept[-1].with_changes(comma=args[-1].comma)
    return kept


def in_front(first: cst.Arg, args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return ``args`` with ``first`` before them."""
    if args:
        first = first.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return [first, *args]


def string_of(node: cst.CSTNode | None) -> str | None:
    """Return the value of a plain string literal, else None."""
    if type(node) is cst.SimpleString and not node.prefix.lower().startswith(("b", "rb", "br")):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def target_names(node: cst.CSTNode) -> list[str]:
    """Return the names that a target binds: two in ``a, (b, c.d)``."""
    if isinstance(node, cst.Name):
        return [node.value]
    if isinstance(node, (cst.Tuple, cst.List)):
        return [name for element in node.elements for name in target_names(element.value)]
    return []


@dataclass(eq=False)
class Scope:
    """A module, class, function, lambda or comprehension, and what is bound in it."""

    kind: str
    node: cst.CSTNode
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    outer: dict[str, str] = field(default_factory=dict)  # name -> "global" | "nonlocal"

    def find(self, name: str) -> list[Binding]:
        """Return the bindings that ``name`` means here, by Python's rules of scopes."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            if scope.outer.get(name) == "global":
                while scope.parent is not None:
                    scope = scope.parent
                return scope.bindings.get(name, [])
            if (first or scope.kind != "class") and name in scope.bindings:
                return scope.bindings[name]
            first = False
            scope = scope.parent
        return []


@dataclass(eq=False)
class Binding:
    """One place that gives a name a meaning.

    Attributes:
        kind: ``"import"``, ``"value"``, ``"element"`` (of a tuple), ``"with"``, ``"for"``,
            ``"param"``, ``"def"``, ``"class"`` or ``"other"``.
        node: the statement or target that binds.
        value: the expression that is bound, of a ``"param"`` its default, else None.
        qualified: what an import names, ``"torch.cuda.amp"``; relative ones begin with a dot.
        index: place in the tuple, of an ``"element"``.
        scope: where it is bound; of a ``"param"`` the function's own scope.
    """

    kind: str
    node: cst.CSTNode
    value: cst.BaseExpression | None = None
    qualified: str = ""
    index: int = 0
    scope: Scope | None = None
