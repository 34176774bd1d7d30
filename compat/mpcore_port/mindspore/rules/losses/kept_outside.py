"""Losses of what a network in another function leaves in a global, or yields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import below
from mpcore_port.mindspore.rules.losses.afar import is_run, is_without
from mpcore_port.mindspore.rules.losses.outside import graded
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.names import code_of, dotted, target_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_port.rule import At

__all__ = ["kept_outside"]

_PLAIN = r"(detach|data|item|size|shape|numpy|device|dtype|cpu\(\)\.numpy|zero_grad|parameters)\b"


def kept_outside(nodes: list[Any], needed: set[str], place: cst.CSTNode, at: At) -> str:
    """Return a name that a loss differentiates and that a network made elsewhere; "" for none.

    Attributes of ``self`` are left to ``afar``.

    Args:
        nodes: what the loss is made of.
        needed: names that they read, and do not make.
        place: a node of the loss's own function.
        at: the module.
    """
    home = at.names.enclosing(place, cst.FunctionDef)
    read = _read_first(nodes, needed)
    if found := sorted(read & _yielded(place, at)):
        return found[0]
    if home is None:
        return ""
    others = [names for function, names in at.once(_left) if function is not home]
    left = (n for n in read if not n.startswith("self.") and not _is_local(n, home, at))
    return min((name for name in left if any(name in names for names in others)), default="")


def _read_first(nodes: list[Any], needed: set[str]) -> set[str]:
    """Return names that are read with their gradients before the nodes make them themselves."""
    found: set[str] = set()
    made: set[str] = set()
    for node in nodes:
        code, targets = _parts(node)
        found |= {name for name in needed - made if _is_differentiated(name, code)}
        made |= targets
    whole = "\n".join(code_of(node) for node in nodes)
    return {name for name in found if not re.search(rf"(?<![\w.]){re.escape(name)}\(", whole)}


def _parts(node: Any) -> tuple[str, set[str]]:
    """Return what a statement reads, as code, and the names that it surely assigns."""
    smalls: list[Any] = [*node.body] if isinstance(node, cst.SimpleStatementLine) else []
    if not smalls or not all(isinstance(small, cst.Assign) for small in smalls):
        return code_of(node), set()
    targets: list[Any] = [one.target for small in smalls for one in small.targets]
    flat = [
        part.value if isinstance(part, cst.Element) else part
        for target in targets
        for part in (target.elements if isinstance(target, cst.Tuple) else [target])
    ]
    return "\n".join(code_of(small.value) for small in smalls), {dotted(one) for one in flat}


def _is_differentiated(name: str, code: str) -> bool:
    """Return whether code reads a name as a tensor with its gradients."""
    word = rf"(?<![\w.]){re.escape(name)}"
    return bool(re.search(rf"{word}(?![\w(]|\.{_PLAIN})", code))


def _is_local(name: str, function: cst.FunctionDef, at: At) -> bool:
    """Return whether the first name of a chain is a function's own."""
    scope = at.names._scopes.get(function)
    return scope is not None and name.partition(".")[0] in scope.bindings


def _left(at: At) -> list[tuple[Any, set[str]]]:
    """Return of each function, and of the module, what its networks make that outlives it."""
    found: list[tuple[Any, set[str]]] = []
    homes: list[Any] = [at.module, *at.names.by_type[cst.FunctionDef]]
    for home in homes:
        body = home if home is at.module else home.body
        names = graded(list(_leaves(body, at)), at)
        if home is not at.module:
            names = {name for name in names if not _is_local(name, home, at)}
        if names:
            found.append((home, names))
    return found


def _leaves(body: Any, at: At) -> Iterator[Any]:
    """Give the simple lines of a body in order; none of what runs without gradients."""
    if not isinstance(body, (cst.IndentedBlock, cst.Module)):
        yield body
        return
    for line in body.body:
        if isinstance(line, cst.SimpleStatementLine):
            yield line
        elif isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            continue
        elif not is_without(line, at):
            for part in (line, getattr(line, "orelse", None), getattr(line, "finalbody", None)):
                if part is not None and hasattr(part, "body"):
                    yield from _leaves(part.body, at)


def _yielded(place: cst.CSTNode, at: At) -> set[str]:
    """Return the names of loops around a loss that a generator with a network gives."""
    found: set[str] = set()
    for above in at.names.ancestors(place):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        if not isinstance(above, cst.For):
            continue
        calls = [node for node in below(above.iter) if isinstance(node, cst.Call)]
        own = [function for call in calls for function in called(call, at)]
        inside = [[*below(function.body)] for function in own]
        if any(
            any(isinstance(node, cst.Yield) for node in nodes)
            and any(isinstance(node, cst.Call) and is_run(node, at) for node in nodes)
            for nodes in inside
        ):
            found |= set(target_names(above.target))
    return found
