"""What changes between a network and its loss: it may not run once more behind that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.mindspore.rules.losses.names_in import assigned_first, read
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.mindspore.rules.losses.touching import handed_weights
from mpcore_port.names import code_of, dotted, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.rule import At

__all__ = ["disturbed"]

_DEPTH = 4
_QUIET = frozenset({"requires_grad", "requires_grad_", "retain_grad", "zero_grad"})


def disturbed(between: Iterable[Any], asked: set[str], at: At) -> bool:
    """Return whether statements change what one of ``asked`` holds: modes, weights, numbers.

    Functions of the file are looked into; another file's that are handed a network are not known.
    """
    lines = list(between)
    if any(handed_weights(line, at) for line in lines):
        return True
    whole = {name for name in asked if not any(one.startswith(f"{name}.") for one in asked)}
    changed = {name for line in lines for name in _changed(line, at, _DEPTH)}
    return any(_same(name, one) for name in changed for one in whole)


def _same(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _changed(node: cst.CSTNode, at: At, depth: int) -> set[str]:
    """Return names and attributes whose holders a statement changes in place."""
    walk = _Holders()
    walk.walk(node)
    found = walk.found
    for call in calls_in(node) if depth else ():
        for function in called(call, at):
            found |= _by(function, call, at, depth - 1)
    return found


def _by(function: cst.FunctionDef, call: cst.Call, at: At, depth: int) -> set[str]:
    """Return what a call of a function changes, as its caller names it."""
    params = [param.name.value for param in function.params.params]
    if isinstance(call.func, cst.Attribute):
        params = params[1:]
    given = {
        arg.keyword.value if arg.keyword else (params[place] if place < len(params) else ""): arg
        for place, arg in enumerate(call.args)
    }
    scope = at.names.scope_of(function)
    own = set(assigned_first(function.body)) - set(scope.outer)
    outer = set(assigned_first(function.body)) & set(scope.outer)
    found = outer
    for name in _changed(function.body, at, depth):
        root, _, rest = name.partition(".")
        if root in given:
            text = dotted(given[root].value)
            found |= {f"{text}.{rest}".strip(".")} if text else set()
        elif root not in own and root not in params:
            found.add(name)
    return found


class _Holders(Walker):
    """``x += 1``, ``s.n = 1``, ``x[0] = 1``, ``net.eval()``, ``for p in net.parameters(): ...``."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            return False
        if isinstance(node, cst.AugAssign):
            self._hold(node.target)
        elif isinstance(node, cst.AssignTarget):
            for target in getattr(node.target, "elements", ()):
                self._hold(target.value, plain=True)
            self._hold(node.target, plain=True)
        elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            func = node.value.func
            if isinstance(func, cst.Attribute) and func.attr.value not in _QUIET:
                self._hold(func.value)
        elif isinstance(node, cst.For):
            inner = _Holders()
            inner.walk(node.body)
            roots = {name.partition(".")[0] for name in inner.found}
            if roots & set(target_names(node.target)):
                self.found |= read(node.iter)
        return True

    def _hold(self, node: Any, *, plain: bool = False) -> None:
        """Take a name up to its first index; a plain name that is only bound anew is none."""
        if plain and not isinstance(node, (cst.Attribute, cst.Subscript)):
            return
        if isinstance(node, cst.Attribute) and node.attr.value in _QUIET:
            return
        while not dotted(node):
            if not isinstance(node, (cst.Attribute, cst.Subscript)):
                return
            node = node.value
        if code_of(node) != "self":
            self.found.add(dotted(node))
