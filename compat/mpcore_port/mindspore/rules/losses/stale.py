"""Names of the turn before: one branch alone binds them, and another place reads them.

``if i == 0: base = loss.detach()`` and ``loss = loss / base`` behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.lines import leaves
from mpcore_port.mindspore.rules.losses.names_in import assigned_first, read
from mpcore_port.names import code_of, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["stale"]


def stale(nodes: Iterable[cst.CSTNode]) -> set[str]:
    """Return names that a branch of statements in a row binds, and that are read outside of it.

    What is read under the condition that it was bound under is not among them, nor what all
    branches bind.
    """
    walk = _Walk()
    walk.block(nodes)
    return walk.found


@dataclass
class _Walk:
    """What is bound so far, surely or under which conditions, and what was read too early."""

    found: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    under: dict[str, list[frozenset[str]]] = field(default_factory=dict)
    tests: dict[str, set[str]] = field(default_factory=dict)
    holds: frozenset[str] = frozenset()

    def block(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            self._statement(node)

    def _statement(self, node: Any) -> None:
        if isinstance(node, cst.If):
            self._branches(node)
        elif isinstance(node, cst.With):
            self._read(name for item in node.items for name in read(item.item))
            named = (item.asname.name for item in node.items if item.asname is not None)
            self._bind(name for target in named for name in target_names(target))
            self._body(node.body)
        elif isinstance(node, cst.For):
            self._read(read(node.iter))
            self._bind(target_names(node.target))
            self._body(node.body)  # taken to run once at least
        else:
            self._read(read(node))
            self._bind(assigned_first(node))

    def _body(self, body: Any) -> None:
        if isinstance(body, cst.IndentedBlock):
            self.block(body.body)
        else:
            self._read(read(body))
            self._bind(assigned_first(body))

    def _branches(self, node: cst.If) -> None:
        self._read(read(node.test))
        test = code_of(node.test)
        yes, no = _parts(node.test), frozenset({f"not {test}"})
        for part in (*yes, *no):
            self.tests[part] = read(node.test)
        before = set(self.sure)
        self._under(yes, node.body)
        one, self.sure = self.sure, set(before)
        other = node.orelse
        if isinstance(other, cst.If):
            outer, self.holds = self.holds, self.holds | no
            self._branches(other)
            self.holds = outer
        elif other is not None:
            self._under(no, other.body)
        both = one & self.sure
        if leaves(node):  # nothing comes from there
            both = self.sure
        elif _ends(other):
            both = one
        self.sure = before | both

    def _under(self, parts: frozenset[str], body: Any) -> None:
        outer, self.holds = self.holds, self.holds | parts
        self._body(body)
        self.holds = outer

    def _read(self, names: Iterable[str]) -> None:
        for name in set(names):
            known = any(parts <= self.holds for parts in self.under.get(name, ()))
            if name in self.under and name not in self.sure and not known:
                self.found.add(name)

    def _bind(self, names: Iterable[str]) -> None:
        for name in names:
            stale = {part for part, asked in self.tests.items() if name in asked}
            if stale:  # a condition that is asked again may have another answer
                for bound in self.under.values():
                    bound[:] = [parts for parts in bound if not parts & stale]
            self.sure.add(name)
            self.under.setdefault(name, []).append(self.holds)


def _parts(test: cst.BaseExpression) -> frozenset[str]:
    """Return the conditions that all hold where ``test`` does."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return _parts(test.left) | _parts(test.right)
    return frozenset({code_of(test)})


def _ends(orelse: Any) -> bool:
    """Return whether what stands behind ``else`` surely leaves."""
    if not isinstance(orelse, cst.Else):
        return False
    return leaves(cst.If(cst.Name("other"), orelse.body))
