"""Where the nodes of a module stand, and its code: both from one walk.

The positions are those of libcst's ``PositionProvider``, which walks over the module twice more.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import cached_property
from itertools import repeat
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState
from libcst.metadata import CodePosition, CodeRange

__all__ = ["Places", "placed", "raw", "spoken"]

_SPOKEN = (cst.BaseExpression, cst.BaseSmallStatement, cst.Arg)
_SPANS: dict[int, tuple[list[str], int, int]] = {}  # of modules that are held, by a node's id


class Places:
    """Where each node of a module begins and ends; the module is held, so ids stay its nodes'."""

    def __init__(self, module: cst.Module, state: _State) -> None:
        self._module, self._spans, self._ranges = module, state.spans, state.ranges
        self._tokens = [*state.tokens, *state.popped]

    def __contains__(self, node: object) -> bool:
        return id(node) in self._spans

    def __getitem__(self, node: cst.CSTNode) -> CodeRange:
        begin, end = self._ranges.get(id(node)) or self._spans[id(node)][1:]
        return CodeRange(CodePosition(*self._at[begin]), CodePosition(*self._at[end]))

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


def placed(module: cst.Module) -> tuple[str, Places]:
    """Return the code of a module, and where each of its nodes begins and ends."""
    state = _State(module.default_indent, module.default_newline)
    module._codegen(state)
    if state.popped:  # the module ends behind it, as libcst counts
        state.ranges[id(module)] = (0, len(state.tokens) + 1)
    places = Places(module, state)
    _SPANS.update(state.spans)
    weakref.finalize(places, _forget, list(state.spans))
    return "".join(state.tokens), places


def spoken(node: cst.CSTNode) -> str | None:
    """Return the code of a node of one line in a module that was read, None for others."""
    span = _SPANS.get(id(node))
    if span is None or not isinstance(node, _SPOKEN):
        return None
    tokens, first, end = span
    code = "".join(tokens[first:end])
    return None if "\n" in code or "\r" in code else code


def raw(node: cst.CSTNode) -> str | None:
    """Return the code of a node as it stands in its module, with its indents and lines around it.

    None for a node of no module that was read. To look for words in; ``spoken`` is to be shown.
    """
    span = _SPANS.get(id(node))
    return None if span is None else "".join(span[0][span[1] : span[2]])


def _forget(ids: list[int]) -> None:
    deque(map(_SPANS.pop, ids, repeat(None)), maxlen=0)


class _State(CodegenState):
    """Notes between which tokens each node stands, and lines and columns of none: few are asked."""

    def __init__(self, indent: str, newline: str) -> None:
        super().__init__(indent, newline)
        self.spans: dict[int, tuple[list[str], int, int]] = {}
        self.ranges: dict[int, tuple[int, int]] = {}  # without the white space around
        self.popped: list[str] = []
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
