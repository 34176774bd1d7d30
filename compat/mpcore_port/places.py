"""Where the nodes of a module stand, and its code: both from one walk.

The positions are those of libcst's ``PositionProvider``, which walks over the module twice more.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
import weakref
from collections import deque
from functools import cache, cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

import libcst as cst
from libcst._nodes.internal import CodegenState
from libcst.metadata import CodePosition, CodeRange

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Again", "Places", "placed", "raw", "spoken", "written"]

_SPOKEN = (cst.BaseExpression, cst.BaseSmallStatement, cst.Arg)
_EMPTY = cst.Module([])
_SPANS: dict[int, tuple[list[str], int, int]] = {}  # of modules that are held, by a node's id


class Places:
    """Where each node of a module begins and ends; the module is held, so ids stay its nodes'.

    Nodes that were kept from a module before have their places there, some lines away.
    """

    def __init__(self, held: object, state: _State, older: Places | None = None) -> None:
        self._held, self._older = held, older
        self._tokens, self._spans, self._ranges = state.tokens, state.spans, state.ranges
        self._runs = state.runs
        _SPANS.update(state.spans)
        weakref.finalize(self, _forget, list(state.spans)).atexit = False

    def __contains__(self, node: object) -> bool:
        older = self._older
        return id(node) in self._spans or (
            older is not None and node in older and self._move(older.line(node)) is not None
        )

    def __getitem__(self, node: cst.CSTNode) -> CodeRange:
        if id(node) in self._spans:
            begin, end = self._ranges.get(id(node)) or self._spans[id(node)][1:]
            return CodeRange(CodePosition(*self._at[begin]), CodePosition(*self._at[end]))
        if self._older is None:
            raise KeyError(node)
        by, place = self._move(self._older.line(node)) or 0, self._older[node]
        start = CodePosition(place.start.line + by, place.start.column)
        return CodeRange(start, CodePosition(place.end.line + by, place.end.column))

    def start(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the line and the column that a node begins at."""
        if id(node) not in self._spans:
            begin = self[node].start
            return begin.line, begin.column
        return self._at[(self._ranges.get(id(node)) or self._spans[id(node)][1:])[0]]

    def line(self, node: object, *, end: bool = False) -> int:
        """Return the line that a node begins in, or ends in, with the lines around it."""
        if id(node) in self._spans:
            _, first, last = self._spans[id(node)]
            return self._at[last if end else first][0]
        if self._older is None:
            raise KeyError(node)
        by = self._move(self._older.line(node)) or 0
        return self._older.line(node, end=end) + by

    def inner(self, run: Sequence[Any]) -> tuple[str, str]:
        """Return the code of neighbouring statements up to the end of the last, and behind that.

        The lines above the first one, and its indent, are left out.
        """
        home, lines = self._home(run[0]), run[0].leading_lines
        tokens, begin, end = home._spans[id(run[0])]
        begin = home._spans[id(lines[-1])][2] if lines else begin
        while tokens[begin].isspace():
            begin += 1
        code = "".join([*tokens[begin:end], *(raw(one) or "" for one in run[1:])])
        home = self._home(run[-1])
        tokens, _, end = home._spans[id(run[-1])]
        rest = "".join(tokens[home._ranges[id(run[-1])][1] : end])
        return code[: len(code) - len(rest)], rest

    def _home(self, node: cst.CSTNode) -> Places:
        """Return the places of the module that a node was parsed in."""
        return self if self._older is None or id(node) in self._spans else self._older._home(node)

    def _move(self, line: int) -> int | None:
        """Return by how many lines a line of the module before has moved; None if it is gone."""
        place = bisect.bisect_right(self._moves, line, key=operator.itemgetter(0)) - 1
        if place < 0:
            return None
        _, end, by = self._moves[place]
        return by if line < end else None

    @cached_property
    def _moves(self) -> list[tuple[int, int, int]]:
        """The lines of kept runs in the module before, and by how many they have moved."""
        older: Any = self._older
        return [
            (*lines, self._at[token][0] - older[last].end.line) for lines, last, token in self._runs
        ]

    @cached_property
    def _at(self) -> list[tuple[int, int]]:
        """Where each token begins, line and column, and where the last one ends."""
        line, column = 1, 0
        found = [(line, column)]
        for token in self._tokens:
            if "\n" in token or "\r" in token:
                *ended, last = _lines(token)
                line, column = line + len(ended), len(last)
            else:
                column += len(token)
            found.append((line, column))
        return found


def _lines(token: str) -> list[str]:
    """Return the lines of a token, at what libcst takes for their ends alone."""
    return token.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def written(node: cst.CSTNode, module: cst.Module = _EMPTY) -> str:
    """Return the code of a node in the context of a module, as ``module.code_for_node`` does."""
    state = _Plain(module.default_indent, module.default_newline)
    node._codegen(state)
    return "".join(state.tokens)


def placed(module: cst.Module) -> tuple[str, Places]:
    """Return the code of a module, and where each of its nodes begins and ends."""
    state = _state_of(module)
    code = "".join(state.tokens)
    if state.popped:  # the module ends behind it, as libcst counts
        state.tokens += state.popped
        state.ranges[id(module)] = (0, len(state.tokens))
    return code, Places(module, state)


def _state_of(module: cst.Module) -> _State:
    state = _State(module.default_indent, module.default_newline)
    module._codegen(state)
    return state


class Again:
    """A module that was parsed with marks in the place of what is kept from an older one.

    Attributes:
        code: what it says, as long as nothing was put into it.
    """

    def __init__(self, parsed: cst.Module, older: Places) -> None:
        self._parsed, self._older = parsed, older
        self._state = _state_of(parsed)
        self.code = "".join(self._state.tokens)

    def moved(self, node: Any, other: Any) -> Any:
        """Return ``other``, which stands where ``node`` did."""
        self._state.spans[id(other)] = self._state.spans[id(node)]
        if id(node) in self._state.ranges:
            self._state.ranges[id(other)] = self._state.ranges[id(node)]
        return other

    def keep(self, mark: cst.CSTNode, run: Sequence[cst.CSTNode], code: str, rest: str) -> None:
        """Put the code of a run where its mark is, of one token and a line end."""
        state = self._state
        begin, end = state.ranges[id(mark)]
        behind = state.spans[id(mark)][2]
        state.tokens[begin:behind] = [code, rest, *[""] * (behind - end - 1)]
        lines = self._older.line(run[0]), self._older.line(run[-1], end=True)
        state.runs.append((lines, run[-1], end))

    def places(self, module: cst.Module) -> Places | None:
        """Return the places in the whole module; None where something is kept twice."""
        runs = self._state.runs
        runs.sort(key=operator.itemgetter(0))
        if any(one[0][1] > other[0][0] for one, other in itertools.pairwise(runs)):
            return None
        return Places((module, self._parsed), self._state, self._older)


def spoken(node: cst.CSTNode) -> str | None:
    """Return the code of a node of one line in a module that was read, None for others."""
    span = _SPANS.get(id(node))
    if span is None or not _is_spoken(type(node)):
        return None
    tokens, first, end = span
    code = "".join(tokens[first:end])
    return None if "\n" in code or "\r" in code else code


@cache
def _is_spoken(kind: type[cst.CSTNode]) -> bool:
    return issubclass(kind, _SPOKEN)


def raw(node: cst.CSTNode) -> str | None:
    """Return the code of a node as it stands in its module, with its indents and lines around it.

    None for a node of no module that was read. To look for words in; ``spoken`` is to be shown.
    """
    span = _SPANS.get(id(node))
    return None if span is None else "".join(span[0][span[1] : span[2]])


def _forget(ids: list[int]) -> None:
    deque(map(_SPANS.pop, ids, repeat(None)), maxlen=0)


class _Plain(CodegenState):
    """Notes no positions: libcst's own makes a context of a generator for each."""

    def record_syntactic_position(self, node: cst.CSTNode, **_: Any) -> Any:
        return _NOTHING


_NOTHING = contextlib.nullcontext()


class _State(CodegenState):
    """Notes between which tokens each node stands, and lines and columns of none: few are asked."""

    def __init__(self, indent: str, newline: str) -> None:
        super().__init__(indent, newline)
        self.spans: dict[int, tuple[list[str], int, int]] = {}
        self.ranges: dict[int, tuple[int, int]] = {}  # without the white space around
        self.popped: list[str] = []
        # of kept statements: their lines before, the last one, and the token that it ends at
        self.runs: list[tuple[tuple[int, int], cst.CSTNode, int]] = []
        self._begun: list[int] = []

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._begun.append(len(self.tokens))

    def after_codegen(self, node: cst.CSTNode) -> None:
        tokens = self.tokens
        self.spans[id(node)] = (tokens, self._begun.pop(), len(tokens))

    def pop_trailing_newline(self) -> None:
        """Take the last token back: of a file that ends without a newline."""
        self.popped = self.tokens[-1:]
        super().pop_trailing_newline()

    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Any:
        return _Range(self, node, start_node, end_node)

    def range_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the tokens of a node that was written."""
        return self.ranges.get(id(node)) or self.spans[id(node)][1:]


class _Range:
    """Notes the range of a node, without the white space around it."""

    __slots__ = ("begin", "node", "start", "state", "stop")

    def __init__(self, state: _State, node: Any, start: Any, stop: Any) -> None:
        self.state, self.node, self.start, self.stop = state, node, start, stop

    def __enter__(self) -> None:
        self.begin = len(self.state.tokens)

    def __exit__(self, *_: object) -> None:
        state = self.state
        begin = self.begin if self.start is None else state.range_of(self.start)[0]
        end = len(state.tokens) if self.stop is None else state.range_of(self.stop)[1]
        state.ranges[id(self.node)] = (begin, end)
