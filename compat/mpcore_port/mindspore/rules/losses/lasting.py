"""What a call takes for good, or keeps for its next run: it may not run once more for a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, calls_in
from mpcore_port.mindspore.rules.losses.names_in import read
from mpcore_port.mindspore.rules.losses.own_passes import called
from mpcore_port.mindspore.rules.place import lineage
from mpcore_port.names import code_of, dotted

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["lasts"]

_DRAWN = ("numpy.random.", "random.")
_TAKEN = frozenset({"next", "pop", "popitem", "popleft"})
_ADDING = frozenset({"add", "append", "appendleft", "extend", "insert", "put", "remove", "update"})
_RUN = ("forward", "__call__")


def lasts(node: cst.CSTNode, at: At, inside: frozenset[int] = frozenset()) -> bool:
    """Return whether a statement takes from an iterator, a list or Python's noise, or adds up.

    Functions, networks and other objects of the file are looked into.
    """
    calls = calls_in(node)
    if any(_takes(call, at) for call in calls):
        return True
    found = {id(one): one for call in calls for one in (*called(call, at), *_methods(call, at))}
    return any(
        _Kept.by(one.body) or lasts(one.body, at, inside | {key})
        for key, one in found.items()
        if key not in inside
    )


def _takes(call: cst.Call, at: At) -> bool:
    """Return whether a second call gives something else than the first: ``next(batches)``."""
    func = call.func
    name = at.names.called(call)
    if name is not None:
        return name.startswith(_DRAWN)
    if isinstance(func, cst.Name):
        return func.value in ("next", "input") and not at.names.scope(func).find(func.value)
    if not isinstance(func, cst.Attribute):
        return False
    made = at.names.call_names(func.value)
    return func.attr.value in _TAKEN or any(one.startswith(_DRAWN) for one in made)


def _methods(call: cst.Call, at: At) -> list[Any]:
    """Return what a call of an object runs, where a class of the file made it."""
    func = call.func
    held = func.value if isinstance(func, cst.Attribute) else None
    found = _of_class(func, _RUN, at)
    if held is not None and isinstance(func, cst.Attribute):
        found += _of_class(held, (func.attr.value,), at)
    return found


def _of_class(holder: cst.BaseExpression, names: tuple[str, ...], at: At) -> list[Any]:
    owner = at.names.class_named(holder)
    owners = {id(one) for one in lineage(owner, at)} if owner is not None else set()
    every = (one for name in names for one in at.names.functions.get(name, ()))
    return [one for one in every if id(at.names.enclosing(one, cst.ClassDef)) in owners]


class _Kept(Walker):
    """Looks for what a method adds to its object: ``self.n += 1``, ``self.seen.append(x)``.

    What it only sets anew, such as ``self.features = x``, is the same after a second run.
    """

    def __init__(self) -> None:
        self.found = False

    @classmethod
    def by(cls, body: cst.CSTNode) -> bool:
        """Return whether statements add to ``self``, or move parameters one by one."""
        walk = cls()
        walk.walk(body)
        return walk.found

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, cst.AugAssign):
            self.found |= _is_own(node.target)
        elif isinstance(node, cst.Assign):
            targets = [one.target for one in node.targets]
            self.found |= any(_is_added(target, node.value) for target in targets)
        elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            func = node.value.func
            self.found |= isinstance(func, cst.Attribute) and _adds(func)
        elif isinstance(node, cst.For) and "parameters()" in code_of(node.iter):
            text = code_of(node.body)
            self.found |= ".data" in text or "_(" in text
        return True


def _adds(func: cst.Attribute) -> bool:
    name = func.attr.value
    return _is_own(func.value) and (name in _ADDING or (name[-1] == "_" and name[-2:] != "__"))


def _is_added(target: Any, value: cst.BaseExpression) -> bool:
    """Return whether an assignment sets a part of what ``self`` holds, or is made of it."""
    if not _is_own(target):
        return False
    return isinstance(target, cst.Subscript) or dotted(target) in read(value)


def _is_own(node: Any) -> bool:
    """Return whether something is held by ``self``."""
    if not isinstance(node, (cst.Attribute, cst.Subscript)):
        return False
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
    return code_of(node) == "self"
