"""Reading: a text with its tree, names and places; and what a pass has made, read again.

A pass leaves most statements alone, and those need no second parse: a thin module, with marks in
their places, is written and parsed, and they come back into it as the nodes that they were.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import Names
from mpcore_port.places import Again, Places, placed, written
from mpcore_port.starred import STARRED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Read", "Rewritten", "read"]

_SUITES = ("body", "cases", "handlers", "orelse", "finalbody")  # in the order of the code
_HOLDERS = (cst.IndentedBlock, cst.If, cst.Else, cst.Finally)


class Read:
    """A tree and what is known about it: ``module``, its ``code``, ``names``, ``positions``.

    ``tail`` is white space and comments at the end that libcst would not give back (1.9.0 loses
    empty lines before a line of blanks there); it is put back as it was.
    """

    def __init__(self, module: cst.Module, code: str, positions: Places, tail: str = "") -> None:
        self.module, self.code, self.positions, self.tail = module, code, positions, tail
        self.names = Names(module, STARRED)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line of a node, from 1."""
        return self.positions.start(node)[0]


def read(text: str) -> Read:
    """Parse ``text``.

    Raises:
        libcst.ParserSyntaxError: it is no Python, or newer than libcst knows.
    """
    return Read(*_parsed(text))


def _parsed(text: str) -> tuple[cst.Module, str, Places, str]:
    module = cst.parse_module(text)
    code, positions = placed(module)
    if code == text:
        return module, code, positions, ""
    lines = text.split("\n")
    for comments in (False, True):
        end = len(lines)
        while end and _is_white(lines[end - 1], comments=comments):
            end -= 1
        head = "".join(f"{line}\n" for line in lines[:end])
        if end < len(lines) and text.startswith(head):
            shorter = cst.parse_module(head)
            code, places = placed(shorter)
            if code == head:
                return shorter, code, places, text[len(head) :]
    return module, code, positions, ""


def _is_white(line: str, *, comments: bool) -> bool:
    return not line.strip() or (comments and line.lstrip().startswith("#"))


class Rewritten:
    """A module that a pass has made of one that was read.

    Attributes:
        text: what it says, with the tail of what it was made of.
        is_changed: whether that is another text than before.
    """

    def __init__(self, before: Read, module: cst.Module) -> None:
        thin = _Thin(before, module) if _is_plain(before) else None
        code = None if thin is None else thin.code
        self._thin = thin if code is not None and not before.tail else None
        self.text = (written(module, module) if code is None else code) + before.tail
        self.is_changed = self.text != before.code + before.tail

    def read(self) -> Read:
        """Return the text as it is when it is read: kept statements are not parsed anew.

        Raises:
            libcst.ParserSyntaxError: it is no Python.
        """
        made = self._thin.read() if self._thin is not None else None
        return read(self.text) if made is None else made


def _is_plain(before: Read) -> bool:
    """Return whether libcst finds the same indent and line end in every part of a module."""
    by_type = before.names.by_type
    blocks = [block for kind in (cst.IndentedBlock, cst.Match) for block in by_type.get(kind, ())]
    return "\r" not in before.code and all(block.indent is None for block in blocks)


class _DiffersError(Exception):
    """A thin module is not parsed to what was written."""


@dataclass
class _Run:
    """Statements that are kept, neighbours as they were; ``depth`` is that of their block."""

    nodes: list[Any]
    depth: int
    text: tuple[str, str] = ("", "")  # up to the end of the last one, and behind it
    behind: str = ""  # what the thin module has up to the next run


class _Thin:
    """A module with a mark in the place of each run of kept statements.

    Kept are statements of the module before at the same depth. One line by itself is not: a mark
    would cost as much.

    Attributes:
        runs: by the id of the statement that is the mark.
        code: of the whole module; None if nothing is kept.
    """

    def __init__(self, before: Read, module: cst.Module) -> None:
        self.before, self.module = before, module
        self.runs: dict[int, _Run] = {}
        self._name = "_kept"
        while self._name in before.code:
            self._name += "_"
        self._indent = before.module.default_indent
        self._orders: dict[Any, dict[int, int]] = {}
        made = self._without(module, 0)
        self.code: str | None = None
        if self.runs:
            self._made = made.with_changes(has_trailing_newline=True)
            self._written = written(self._made, self._made)
            self.code = self._whole()

    # --- writing --------------------------------------------------------------------------------

    def _without(self, node: Any, depth: int) -> Any:
        """Return a module, or what holds statements in one, with marks in its blocks."""
        changes = {}
        for name, part in _suites(node):
            if isinstance(node, (cst.Module, cst.IndentedBlock)):
                made: Any = self._block(part, depth)
            elif isinstance(part, (list, tuple)):
                inside = depth + (type(node) is cst.Match)  # its cases stand in no block
                made = [self._without(one, inside) for one in part]
            else:
                made = self._without(part, depth + (type(part) is cst.IndentedBlock))
            changes[name] = made
        return node.with_changes(**changes) if changes else node

    def _block(self, body: Sequence[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        run = _Run([], depth)
        for statement in body:
            if run.nodes and self._is_next(run.nodes[-1], statement):
                run.nodes.append(statement)
                continue
            made += self._marked(run)
            run = _Run([statement] if self._is_kept(statement, depth) else [], depth)
            made += [] if run.nodes else [self._without(statement, depth)]
        return made + self._marked(run)

    def _marked(self, run: _Run) -> list[Any]:
        if not run.nodes or (len(run.nodes) == 1 and _is_line(run.nodes[0])):
            return run.nodes
        name = cst.Name(f"{self._name}{len(self.runs)}")
        mark = cst.SimpleStatementLine([cst.Expr(name)], run.nodes[0].leading_lines)
        self.runs[id(mark)] = run
        return [mark]

    def _is_kept(self, statement: Any, depth: int) -> bool:
        if statement not in self.before.names.parents:
            return False
        return self.before.positions.start(statement)[1] == depth * len(self._indent)

    def _is_next(self, one: Any, other: Any) -> bool:
        """Return whether a statement stood behind another one before."""
        parents = self.before.names.parents
        if parents.get(other) is not parents[one]:
            return False
        order = self._order(parents[one])
        return order[id(other)] == order[id(one)] + 1

    def _order(self, block: Any) -> dict[int, int]:
        if block not in self._orders:
            self._orders[block] = {id(line): place for place, line in enumerate(block.body)}
        return self._orders[block]

    def _whole(self) -> str | None:
        """Return the code with that of each run in the place of its mark."""
        head, *rest = re.split(rf"{self._name}\d+\n", self._written)
        if len(rest) != len(self.runs):
            return None  # the port has such a name, too
        whole = [head]
        for run, behind in zip(self.runs.values(), rest, strict=True):
            run.text, run.behind = self.before.positions.inner(run.nodes), behind
            whole += [*run.text, run.behind]
        code = "".join(whole)
        return code if self.module.has_trailing_newline else code[:-1]

    # --- reading --------------------------------------------------------------------------------

    def read(self) -> Read | None:
        """Return what parsing the code would give; None where that is not sure."""
        if any(self._takes_more(run) for run in self.runs.values()):
            return None
        try:
            parsed = cst.parse_module(self._written)
            self._again = Again(parsed, self.before.positions)
            if self._again.code != self._written or parsed.default_indent != self._indent:
                return None
            module = self._whole_of(self._made, parsed)
        except (cst.ParserSyntaxError, _DiffersError):
            return None
        places = self._again.places(module)
        return None if places is None else Read(module, str(self.code), places)

    def _takes_more(self, run: _Run) -> bool:
        """Return whether a line behind a run may belong to a block of its last statement."""
        if _is_line(run.nodes[-1]):
            return False
        indent = run.depth * self._indent
        for line in run.behind.split("\n"):
            if not _is_white(line, comments=True):
                return False
            if line.startswith((f"{indent} ", f"{indent}\t")):
                return True
        return False

    def _whole_of(self, thin: Any, parsed: Any) -> Any:
        """Return what was parsed, with the runs in the places of their marks."""
        changes = {}
        if type(thin) is not type(parsed):
            raise _DiffersError
        for (name, part), (_, other) in zip(_suites(thin), _suites(parsed), strict=True):
            if not isinstance(part, (list, tuple)):
                changes[name] = self._whole_of(part, other)
            elif len(part) == len(other):
                pairs = zip(part, other, strict=True)
                changes[name] = tuple(one for pair in pairs for one in self._nodes(*pair))
            else:
                raise _DiffersError
        if thin is self._made:
            changes["has_trailing_newline"] = self.module.has_trailing_newline
        return self._again.moved(parsed, parsed.with_changes(**changes)) if changes else parsed

    def _nodes(self, thin: Any, parsed: Any) -> Sequence[Any]:
        run = self.runs.get(id(thin))
        if run is None:
            return [self._whole_of(thin, parsed)]
        if len(run.nodes[0].leading_lines) != len(parsed.leading_lines):
            raise _DiffersError  # they are the module's head now
        self._again.keep(parsed, run.nodes, *run.text)
        return run.nodes


def _suites(node: Any) -> Iterator[tuple[str, Any]]:
    """Give the fields of a node that hold statements, or parts that hold some."""
    for name in _SUITES if not _is_line(node) else ():
        part = getattr(node, name, None)
        if isinstance(part, (list, tuple)) or type(part) in _HOLDERS:
            yield name, part


def _is_line(node: Any) -> bool:
    return type(node) is cst.SimpleStatementLine
