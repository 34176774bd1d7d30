"""Whether lists of parameters surely hold all that a network learns, or a part alone.

``[p for n, p in net.named_parameters() if decays(n)]`` beside its complement is all of them; behind
a generator that the first list has used up, the second one is empty.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of, dotted, string_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = ["covers"]

_DEPTH = 8
_MOST = 8
"""Conditions that are tried in all ways."""
_LISTS = ("list", "tuple", "set", "dict", "sorted")
_LAZY = ("chain", "iter", "reversed", "itertools.chain")
_NAMED = ("named_parameters", "parameters")
_OTHERS = {
    ast.NotIn: ast.In,
    ast.NotEq: ast.Eq,
    ast.IsNot: ast.Is,
    ast.GtE: ast.Lt,
    ast.LtE: ast.Gt,
}
"""What is the opposite of what."""


@dataclass(frozen=True)
class _Piece:
    """Parameters of a network under conditions; the generator they come from, if a name has it."""

    model: str
    conditions: tuple[str, ...] = ()
    source: int = 0
    is_lazy: bool = True
    is_spent: bool = False


def covers(clipped: Any, moved: Any, at: At) -> bool | None:
    """Return whether two expressions surely are the parameters of the same networks.

    False: one surely is a part of the other's. None: nothing in this file says it.
    """
    if code_of(clipped) == code_of(moved):
        return True
    both = [_pieces(one, at) for one in (clipped, moved)]
    whole = [_is_whole(one) for one in both]
    if all(whole):
        return True
    if whole[1] is False and any(one.is_spent for one in both[1] or ()):
        return False
    if whole[0] is False and whole[1]:  # what is clipped is a part by its conditions
        return False
    return None


def _is_whole(pieces: list[_Piece] | None) -> bool | None:
    """Return whether pieces are all that their networks learn; None: they are not known."""
    if not pieces:
        return None
    left = [one for one in pieces if not one.is_spent]
    return all(
        _always([one.conditions for one in left if one.model == model])
        for model in {one.model for one in pieces}
    )


def _pieces(node: Any, at: At) -> list[_Piece] | None:
    """Return what an expression is put together of, in the order it is read; None if unknown."""
    found = _read(node, at, _DEPTH)
    if found is None:
        return None
    seen: set[int] = set()
    made = []
    for one in found:
        made.append(replace(one, is_spent=one.source in seen))
        seen |= {one.source} if one.source else set()
    return made


def _read(node: Any, at: At, depth: int) -> list[_Piece] | None:
    if node is None or depth == 0:
        return None
    if isinstance(node, (cst.List, cst.Tuple)):
        parts = node.elements
        read = [_read if isinstance(one, cst.StarredElement) else _element for one in parts]
        return _joined([of(one.value, at, depth) for of, one in zip(read, parts, strict=True)])
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _joined([_read(one, at, depth - 1) for one in (node.left, node.right)])
    if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
        return _filtered(node, node.elt, at, depth)
    if isinstance(node, cst.DictComp):
        return _filtered(node, node.value, at, depth)
    if isinstance(node, (cst.Name, cst.Attribute)):
        return _of_name(node, at, depth)
    return _of_call(node, at, depth) if isinstance(node, cst.Call) else None


def _joined(parts: list[list[_Piece] | None]) -> list[_Piece] | None:
    """Return the parts as one, if all are known."""
    found: list[_Piece] = []
    for part in parts:
        if part is None:
            return None
        found += part
    return found


def _element(value: Any, at: At, depth: int) -> list[_Piece] | None:
    """Return what a group of an optimizer holds: the value of its key ``params``."""
    if isinstance(value, cst.Dict):
        keyed = [one for one in value.elements if isinstance(one, cst.DictElement)]
        held = [one.value for one in keyed if string_of(one.key) == "params"]
        return _read(held[0], at, depth - 1) if len(held) == 1 else None
    if isinstance(value, cst.Call) and dotted(value.func) == "dict":
        named = [a.value for a in value.args if a.keyword and a.keyword.value == "params"]
        return _read(named[0], at, depth - 1) if len(named) == 1 else None
    if isinstance(value, (cst.Name, cst.Attribute)):  # a group, or a parameter by itself
        made = at.names.origins(value)
        is_one = len(made) == 1 and isinstance(made[0], (cst.Dict, cst.Call))
        return _element(made[0], at, depth - 1) if is_one and depth > 1 else None
    return None


def _of_name(node: Any, at: At, depth: int) -> list[_Piece] | None:
    """Return what a name holds; a generator that it holds gives its parameters once."""
    made = at.names.origins(node)
    if len(made) != 1 or made[0] is node:
        return None
    found = _read(made[0], at, depth - 1)
    if found is None:
        return None
    return [replace(one, source=one.source or (id(made[0]) if one.is_lazy else 0)) for one in found]


def _of_call(call: cst.Call, at: At, depth: int) -> list[_Piece] | None:
    func, word = call.func, dotted(call.func)
    if isinstance(func, cst.Attribute) and not call.args:
        if func.attr.value in _NAMED and func.attr.value not in at.names.functions:
            held = dotted(func.value).removesuffix(".module")
            return [_Piece(held)] if held else None
        if func.attr.value in ("items", "values"):
            return _read(func.value, at, depth - 1)
    given = [arg.value for arg in call.args]
    if word == "filter" and len(given) == 2 and isinstance(given[0], cst.Lambda):
        params = given[0].params.params
        if len(params) != 1:
            return None
        found = _read(given[1], at, depth - 1)
        return _with(found, [_renamed(given[0].body, {params[0].name.value: "_p"})])
    if word in _LISTS and len(given) == 1:
        found = _read(given[0], at, depth - 1)
        return None if found is None else [replace(one, is_lazy=False) for one in found]
    if word in _LAZY or at.names.called(call) in _LAZY:
        return _joined([_read(one, at, depth - 1) for one in given])
    return None


def _filtered(node: Any, kept: Any, at: At, depth: int) -> list[_Piece] | None:
    """Return what ``[p for n, p in named if wanted(n)]`` keeps."""
    loop = node.for_in
    if loop.inner_for_in is not None:
        return None
    target, names = loop.target, {}
    if isinstance(target, cst.Tuple) and len(target.elements) == 2:
        names = dict(zip((dotted(e.value) for e in target.elements), ("_n", "_p"), strict=True))
    elif isinstance(target, cst.Name):
        names = {target.value: "_p"}
    if isinstance(kept, cst.Tuple) and len(kept.elements) == 2:  # (n, p) again
        kept = kept.elements[1].value
    if names.get(dotted(kept)) != "_p":
        return None
    conditions = [_renamed(one.test, names) for one in loop.ifs]
    found = _with(_read(loop.iter, at, depth - 1), conditions)
    if found is None:
        return None
    is_lazy = isinstance(node, cst.GeneratorExp)
    return [replace(one, is_lazy=is_lazy) for one in found]


def _with(found: list[_Piece] | None, conditions: list[str]) -> list[_Piece] | None:
    if found is None:
        return None
    return [replace(one, conditions=(*one.conditions, *conditions)) for one in found]


def _renamed(node: cst.BaseExpression, names: dict[str, str]) -> str:
    """Return a condition as code, by the names that parameters have here."""
    tree = ast.parse(code_of(node).strip(), mode="eval")
    for one in ast.walk(tree):
        if isinstance(one, ast.Name):
            one.id = names.get(one.id, one.id)
    return ast.unparse(tree)


# --- conditions --------------------------------------------------------------------------------


def _always(ways: list[tuple[str, ...]]) -> bool:
    """Return whether one of several sets of conditions surely holds, whatever each of them is."""
    trees = [[_plain(ast.parse(one, mode="eval").body) for one in way] for way in ways]
    atoms = sorted({atom for way in trees for tree in way for atom in _atoms(tree)})
    if len(atoms) > _MOST:
        return False
    return bool(ways) and all(
        any(
            all(_holds(tree, dict(zip(atoms, truths, strict=True))) for tree in way)
            for way in trees
        )
        for truths in product((True, False), repeat=len(atoms))
    )


def _plain(node: Any) -> Any:
    """Return a condition as nested ``("and" | "or" | "not", ...)`` over texts."""
    if isinstance(node, ast.BoolOp):
        word = "and" if isinstance(node.op, ast.And) else "or"
        return (word, *map(_plain, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ("not", _plain(node.operand))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _OTHERS.get(type(node.ops[0]))
        if other is not None:
            return ("not", ast.unparse(_compared(node, other)))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "all" and len(node.args) == 1:
        every = node.args[0]  # all(not a ...) is not any(a ...)
        if isinstance(every, ast.GeneratorExp):
            held = ast.GeneratorExp(_opposite(every.elt), every.generators)
            return ("not", f"any({ast.unparse(held)})")
    return ast.unparse(node)


def _compared(node: ast.Compare, operator: type[ast.cmpop]) -> ast.Compare:
    return ast.Compare(node.left, [operator()], node.comparators)


def _opposite(node: Any) -> ast.expr:
    made = _plain(node)
    if isinstance(made, tuple) and made[0] == "not" and isinstance(made[1], str):
        return ast.parse(made[1], mode="eval").body
    return ast.UnaryOp(ast.Not(), node)


def _atoms(tree: Any) -> Iterator[str]:
    if isinstance(tree, tuple):
        for one in tree[1:]:
            yield from _atoms(one)
    elif tree not in _LEARNS:
        yield tree


_LEARNS = {"_p.requires_grad": True, "_p.grad is None": False}
"""What is not learned has no gradient that is clipped."""


def _holds(tree: Any, truths: dict[str, bool]) -> bool:
    if not isinstance(tree, tuple):
        return truths[tree] if tree in truths else _LEARNS[tree]
    if tree[0] == "not":
        return not _holds(tree[1], truths)
    found = (_holds(one, truths) for one in tree[1:])
    return all(found) if tree[0] == "and" else any(found)
