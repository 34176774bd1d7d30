"""Names that a loss's new function shares with the function around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.children import Walker, below
from mpcore_port.mindspore.rules.losses.names_in import assigned, assigned_first, read, read_first
from mpcore_port.mindspore.rules.losses.networks_run import own_names
from mpcore_port.mindspore.rules.losses.stale import stale
from mpcore_port.names import target_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore_port.mindspore.rules.losses.planned import Plan
    from mpcore_port.rule import At

__all__ = ["SharedNames", "only"]


def only(statement: Any, wanted: set[str]) -> Any:
    """Return a ``with`` block with the statements that make ``wanted`` names."""
    if not isinstance(statement, cst.With) or not isinstance(statement.body, cst.IndentedBlock):
        return statement
    kept: list[Any] = []
    needed = set(wanted)
    for line in reversed(statement.body.body):
        made = set(assigned(line))
        if made & needed:
            kept.insert(0, line)
            needed = (needed - made) | read(line)
    return statement.with_changes(body=statement.body.with_changes(body=kept), leading_lines=())


class SharedNames:
    """The names of scopes that have plans: which are taken, read, and bound there."""

    def __init__(self, at: At) -> None:
        self.at, self.names = at, at.names
        self._functions: set[str] = set()
        self._scopes: dict[int, list[_Part]] = {}  # by the id of a scope's node: read once
        self._nested: dict[int, tuple[Any, list[Plan]]] = {}  # by function, the plans inside

    def fresh(self, name: str) -> str:
        """Return a name that nothing in the module has."""
        taken = self._functions | set(self.names.top.bindings)
        for scope in self.names._scopes.values():
            if scope.kind != "class":
                taken |= set(scope.bindings)
        number, fresh = 1, name
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        self._functions.add(fresh)
        return fresh

    def share(self, plan: Plan) -> None:
        """Find the names that the function assigns and the rest of the scope reads."""
        every = sorted({*plan.places, *plan.again})
        made: list[str] = []
        bodies = [(place, plan.block.body[place]) for place in every]
        lines = [only(line, plan.wanted) if p in plan.again else line for p, line in bodies]
        sunk = plan.front if plan.sunk else []
        lines = [*sunk, *lines]
        before = plan.before
        before |= stale([*lines, cst.SimpleStatementLine([cst.Expr(plan.result)])])
        for line in lines:
            before |= read_first(line, set(made))
            made += [name for name in assigned_first(line) if name not in made]
        scope_node = self.names.enclosing(plan.sink.call, cst.FunctionDef, cst.ClassDef)
        top = scope_node is None or isinstance(scope_node, cst.ClassDef)
        root: Any = self.at.module if scope_node is None else scope_node
        skipped = {id(line) for line in (*sunk, *(plan.block.body[p] for p in plan.places))}
        if id(root) not in self._scopes:
            self._scopes[id(root)] = _parts(root)
        outside = _outside(self._scopes[id(root)], skipped)
        plan.word = "global" if top else "nonlocal"
        own = {n for p in plan.places for n in assigned(plan.block.body[p])}
        own |= {name for line in plan.front for name in assigned(line)}
        for name in dict.fromkeys(made):
            # what is computed once more alone stays outside as the loss before has made it
            asked = name in outside.read and name != plan.bound and name in own
            if name in before or asked:
                plan.kept.append(name)
        if not top:
            declared = self.names.scope_of(root).outer
            if any(declared.get(n) == "global" for n in plan.kept):
                plan.word = "global"
            self._nested.setdefault(id(root), (root, []))[1].append(plan)

    def forget(self, plan: Plan) -> None:
        """Leave a plan out again."""
        for _, nested in self._nested.values():
            if plan in nested:
                nested.remove(plan)

    def bind(self, started: dict[int, list[tuple[str, int]]]) -> None:
        """Find the names that nothing but the new functions assigns: nonlocal needs a binding."""
        for root, plans in self._nested.values():
            inside = {id(plan.block.body[place]) for plan in plans for place in plan.places}
            inside |= {id(line) for plan in plans if plan.sunk for line in plan.front}
            given = root.params
            params = (*given.posonly_params, *given.params, *given.kwonly_params)
            bound = set(_outside(self._scopes[id(root)], inside).made)
            bound |= {param.name.value for param in params} | set(self.names.scope_of(root).outer)
            for plan in plans:
                missing = [name for name in plan.kept if name not in bound]
                plan.missing = [name for name in missing if name not in plan.before]
                first = [(name, id(plan.sink.call)) for name in missing if name in plan.before]
                started.setdefault(id(root.body), []).extend(first)
                bound |= set(missing)


@dataclass
class _Outside:
    read: set[str]
    made: list[str]


@dataclass(frozen=True)
class _Part:
    """What one place of a scope reads and assigns, and the statements that it lies in."""

    inside: frozenset[int]
    read: frozenset[str]
    made: tuple[str, ...]


def _parts(root: Any) -> list[_Part]:
    """Return the places of a scope, in order; nested functions and classes included."""
    found: list[_Part] = []
    stack: list[int] = []
    own: list[set[str]] = [set()]  # of the nested functions around a place

    def add(names: Iterable[str], made: Iterable[str] = ()) -> None:
        outer = (name for name in made if name not in own[-1])
        found.append(_Part(frozenset(stack), frozenset(names) - own[-1], tuple(outer)))

    class _Walk(Walker):
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.BaseStatement):
                stack.append(id(node))
            if isinstance(node, cst.SimpleStatementLine):
                add(read(node), assigned_first(node))
                return False
            for part in ("test", "iter", "item", "default"):
                value = getattr(node, part, None)
                if isinstance(value, cst.CSTNode):
                    add(read(value))
            if isinstance(node, cst.For):
                add((), target_names(node.target))
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node is not root:
                add(read(node))
            if isinstance(node, cst.FunctionDef) and node is not root:
                own.append(own[-1] | (own_names(node) - _of_outer(node)))
            return True

        def on_leave(self, node: cst.CSTNode) -> None:
            if isinstance(node, cst.FunctionDef) and node is not root:
                own.pop()
            if isinstance(node, cst.BaseStatement):
                stack.pop()

    _Walk().walk(root)
    return found


def _of_outer(function: cst.FunctionDef) -> set[str]:
    """Return the names that a function says are of the scope around it, or the module's."""
    kinds = (cst.Nonlocal, cst.Global)
    said = [one for one in below(function.body) if isinstance(one, kinds)]
    return {item.name.value for one in said for item in one.names}


def _outside(parts: list[_Part], skipped: set[int]) -> _Outside:
    """Return what a scope reads and assigns outside some statements."""
    names: set[str] = set()
    made: list[str] = []
    for part in parts:
        if part.inside.isdisjoint(skipped):
            names |= part.read
            made += part.made
    return _Outside(names, made)
