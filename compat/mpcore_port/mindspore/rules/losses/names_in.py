"""The names that statements read, assign and need of before them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker
from mpcore_port.names import dotted, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.rule import At

__all__ = [
    "assigned",
    "assigned_first",
    "bound_before",
    "bound_by",
    "filled",
    "jumps",
    "read",
    "read_first",
    "set_parts",
    "surely",
    "surely_made",
]

_INNER = (cst.FunctionDef, cst.Lambda, cst.ClassDef)

_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


# Types are asked for by name: libcst's are abstract, and isinstance costs more than the walk.
_DEFINED = frozenset((cst.FunctionDef, cst.ClassDef))

_OWN = frozenset((cst.Lambda, *_COMPREHENSIONS))

_TARGETED = frozenset((cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr))

_CHANGES = ("append", "extend", "register_hook", "update")  # a hook changes its gradient

_KEPT = 4096  # statements whose names are kept: nodes never change, and are equal to themselves


class _Assigned(Walker):
    def __init__(self) -> None:
        self.names: list[str] = []

    def on_visit(self, node: Any) -> bool:
        kind = type(node)
        if kind in _DEFINED:
            self.names.append(node.name.value)
            return False
        if kind in _OWN:
            return False
        if kind in _TARGETED:
            self._target(node.target)
        elif kind is cst.AsName:
            self._target(node.name)
        elif kind is cst.Expr:
            self._changed(node.value)
        return True

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self.names.append(node.value)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value)
        elif isinstance(node, cst.Subscript):
            self._target(node.value)
        elif isinstance(node, cst.Attribute) and dotted(node):
            self.names.append(dotted(node))

    def _changed(self, node: cst.BaseExpression) -> None:
        """``x.fill_(0)`` and ``losses.append(y)`` change what the name holds."""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            name = node.func.attr.value
            if name in _CHANGES or (name.endswith("_") and name[-2:] != "__"):
                self._target(node.func.value)


def assigned(node: cst.CSTNode) -> list[str]:
    """Return the names that ``node`` assigns or changes, dotted ones too, in order."""
    return list(_assigned(node))


@lru_cache(_KEPT)
def _assigned(node: cst.CSTNode) -> tuple[str, ...]:
    found = _Assigned()
    found.walk(node)
    return tuple(found.names)


def set_parts(node: cst.CSTNode) -> set[str]:
    """Return the plain names of which ``node`` sets a part: ``x[:, i] = y``, ``x[0] += 1``."""
    found = _Parts()
    found.walk(node)
    return set(found.names)


class _Parts(_Assigned):
    """Names of lists, dictionaries and tensors of which parts are set."""

    def on_visit(self, node: Any) -> bool:
        return type(node) not in _DEFINED and super().on_visit(node)

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.Tuple, cst.List)):
            super()._target(node)
            return
        root: Any = node
        while isinstance(root, cst.Subscript):
            root = root.value
        if root is not node and isinstance(root, cst.Name):
            self.names.append(root.value)

    def _changed(self, node: cst.BaseExpression) -> None:
        pass


_GROWING = ("append", "extend", "insert", "update")


class _Filled(_Parts):
    """Names of those that get more, too."""

    def on_visit(self, node: Any) -> bool:
        listed = isinstance(node, cst.AugAssign) and isinstance(
            node.value, (cst.List, cst.ListComp, cst.Tuple)
        )
        if listed and isinstance(node.target, cst.Name):
            self.names.append(node.target.value)  # ``outs += [y]``
        return super().on_visit(node)

    def _changed(self, node: cst.BaseExpression) -> None:
        func: Any = node.func if isinstance(node, cst.Call) else None
        grows = isinstance(func, cst.Attribute) and func.attr.value in _GROWING
        if grows and isinstance(func.value, cst.Name):
            self.names.append(func.value.value)


def filled(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the plain names of what statements put something into: ``outs.append(y)``."""
    found = _Filled()
    for node in nodes:
        found.walk(node)
    return set(found.names)


class _Plain(_Assigned):
    def _changed(self, node: cst.BaseExpression) -> None:
        pass

    def _target(self, node: cst.CSTNode) -> None:
        if not isinstance(node, (cst.Subscript, cst.Attribute)):
            super()._target(node)


def assigned_first(node: cst.CSTNode) -> list[str]:
    """Return the plain names that become local to a function that holds ``node``."""
    return list(_assigned_first(node))


@lru_cache(_KEPT)
def _assigned_first(node: cst.CSTNode) -> tuple[str, ...]:
    found = _Plain()
    found.walk(node)
    return tuple(found.names)


class _Declared(Walker):
    """Names that a function declares global or nonlocal."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_visit(self, node: Any) -> bool:
        if isinstance(node, cst.NameItem):
            self.names.add(node.name.value)
        return not isinstance(node, _INNER)


class _Read(Walker):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_visit(self, node: Any) -> bool:
        """Walk only where values are read."""
        kind = type(node)
        if kind is cst.Name:
            self.names.add(node.value)
        elif kind is cst.Attribute:
            self._attribute(node)
        elif kind is cst.Arg:
            self.walk(node.value)
        elif kind is cst.Param:
            self._each(node.default)
        elif kind is cst.AssignTarget:
            self._inside(node.target)
        elif kind is cst.AnnAssign:
            self._inside(node.target)
            self._each(node.value)
        elif kind is cst.For:
            self._each(node.iter, node.body, node.orelse)
        elif kind is cst.FunctionDef:
            self._function(node)
        elif kind in _OWN and kind is not cst.Lambda:
            self._comprehension(node)
        else:
            return True
        return False

    def _function(self, node: cst.FunctionDef) -> None:
        """What a function binds is its own, but for what it says is of around it."""
        self._each(*node.decorators, node.params, node.returns)
        inner = _Read()
        inner.walk(node.body)
        said = _Declared()
        said.walk(node.body)
        given = node.params
        params = [*given.posonly_params, *given.params, *given.kwonly_params]
        params += [p for p in (given.star_arg, given.star_kwarg) if isinstance(p, cst.Param)]
        own = {param.name.value for param in params} | set(assigned_first(node.body)) - said.names
        self.names |= {name for name in inner.names if name.partition(".")[0] not in own}

    def _comprehension(self, node: Any) -> None:
        """What ``for`` binds in a comprehension is its own; its first iterable is read outside."""
        inner = _Read()
        bound: set[str] = set()
        part = node.for_in
        self.walk(part.iter)
        while part is not None:
            bound |= set(target_names(part.target))
            inner._each(*(test.test for test in part.ifs))
            part = part.inner_for_in
            inner._each(None if part is None else part.iter)
        inner._each(*((node.key, node.value) if isinstance(node, cst.DictComp) else (node.elt,)))
        self.names |= {name for name in inner.names if name.partition(".")[0] not in bound}

    def _each(self, *nodes: cst.CSTNode | None) -> None:
        for node in nodes:
            if node is not None:
                self.walk(node)

    def _attribute(self, node: cst.Attribute) -> None:
        text = dotted(node)
        if not text:
            self.walk(node.value)
            return
        parts = text.split(".")
        self.names.update(".".join(parts[: i + 1]) for i in range(len(parts)))

    def _inside(self, target: cst.CSTNode) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._inside(element.value)
        elif not isinstance(target, cst.Name):
            self.walk(target)


def read(node: cst.CSTNode) -> set[str]:
    """Return the names that ``node`` reads, of dotted ones each beginning too."""
    return set(_read(node))


@lru_cache(_KEPT)
def _read(node: cst.CSTNode) -> frozenset[str]:
    found = _Read()
    found.walk(node)
    return frozenset(found.names)


def surely_made(node: Any) -> set[str]:
    """Return the plain names that a statement assigns whatever its conditions are."""
    if isinstance(node, cst.SimpleStatementLine):
        return set(assigned_first(node))
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return {node.name.value}
    if isinstance(node, cst.IndentedBlock):
        return {name for line in node.body for name in surely_made(line)}
    if isinstance(node, cst.With):
        return surely_made(node.body) | bound_by(node)
    if isinstance(node, cst.If) and node.orelse is not None:
        return surely_made(node.body) & surely_made(node.orelse)
    if isinstance(node, cst.If):
        return set()
    return surely_made(node.body) if isinstance(node, cst.Else) else set()


def bound_by(node: Any) -> set[str]:
    """Return the names that a statement binds for its block: a loop's, and those behind ``as``."""
    if isinstance(node, cst.For):
        return set(target_names(node.target))
    if not isinstance(node, cst.With):
        return set()
    return {name for one in node.items if one.asname for name in target_names(one.asname.name)}


def bound_before(node: cst.CSTNode, top: Any, at: At) -> set[str]:
    """Return the plain names that are surely bound where a statement below ``top`` begins."""
    found: set[str] = set()
    below: Any = node
    for above in at.names.ancestors(node):
        if isinstance(above, (cst.IndentedBlock, cst.Module)):
            for line in above.body:
                if line is below:
                    break
                found |= surely_made(line)
        found |= bound_by(above)
        below = above
        if above is top:
            break
    if isinstance(top, cst.FunctionDef):
        given = top.params
        every = [*given.posonly_params, *given.params, *given.kwonly_params]
        every += [one for one in (given.star_arg, given.star_kwarg) if isinstance(one, cst.Param)]
        found |= {param.name.value for param in every}
    return found


def read_first(node: Any, made: set[str]) -> set[str]:
    """Return the names that ``node`` may read before it assigns them; ``made`` are by then."""
    if isinstance(node, cst.IndentedBlock):
        found: set[str] = set()
        known = set(made)
        for line in node.body:
            found |= read_first(line, known)
            known |= set(assigned_first(line))
        return found
    if isinstance(node, cst.With):
        items = {name for item in node.items for name in read(item.item)}
        return (items - made) | read_first(node.body, made)
    if isinstance(node, cst.If):
        found = (read(node.test) - made) | read_first(node.body, made)
        return found | (read_first(node.orelse, made) if node.orelse else set())
    if isinstance(node, cst.Else):
        return read_first(node.body, made)
    if isinstance(node, cst.For):
        known = made | set(assigned_first(node.target)) | set(target_names(node.target))
        return (read(node.iter) - made) | read_first(node.body, known)
    return read(node) - made


def needs(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return the names that statements in a row may read of before them."""
    found: set[str] = set()
    made: set[str] = set()
    for node in nodes:
        found |= read_first(node, made)
        made |= set(assigned_first(node)) if surely(node) else set()
    return found


class _Jumps(Walker):
    def __init__(self) -> None:
        self.found: list[cst.CSTNode] = []
        self._loops = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _INNER):
            return False
        if isinstance(node, (cst.For, cst.While)):
            self._loops += 1
        if isinstance(node, (cst.Return, cst.Yield, cst.Await)):
            self.found.append(node)
        if isinstance(node, (cst.Break, cst.Continue)) and not self._loops:
            self.found.append(node)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, (cst.For, cst.While)):
            self._loops -= 1


def jumps(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the statements that leave ``node``: return, yield, a break of a loop around it."""
    found = _Jumps()
    found.walk(node)
    return found.found


def surely(statement: Any) -> bool:
    """Whether all that it assigns is new after it: a plain assignment, or a plain ``with``."""
    if isinstance(statement, cst.SimpleStatementLine):
        return all(
            isinstance(small, (cst.Assign, cst.AnnAssign))
            and not any(isinstance(t.target, cst.Subscript) for t in getattr(small, "targets", ()))
            for small in statement.body
        )
    if isinstance(statement, cst.With) and isinstance(statement.body, cst.IndentedBlock):
        return all(surely(inner) for inner in statement.body.body)
    return False
