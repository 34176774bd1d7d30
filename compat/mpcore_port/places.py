"""Where the nodes of a module stand, and its code: both from one walk.

The positions are those of libcst's ``PositionProvider``, which walks over the module twice more.
"""

from __future__ import annotations

import weakref
from typing import Any

import libcst as cst
from libcst.metadata import CodePosition, CodeRange
from libcst.metadata.position_provider import PositionProvidingCodegenState

__all__ = ["Places", "placed", "raw", "spoken"]

_SPOKEN = (cst.BaseExpression, cst.BaseSmallStatement, cst.Arg)
_SPANS: dict[int, tuple[list[str], int, int]] = {}  # of modules that are held, by a node's id


class Places:
    """Where each node of a module begins and ends; the module is held, so ids stay its nodes'."""

    def __init__(self, module: cst.Module, found: dict[int, tuple[int, int, int, int]]) -> None:
        self._module, self._found = module, found

    def __contains__(self, node: object) -> bool:
        return id(node) in self._found

    def __getitem__(self, node: cst.CSTNode) -> CodeRange:
        line, column, end, last = self._found[id(node)]
        return CodeRange(CodePosition(line, column), CodePosition(end, last))


def placed(module: cst.Module) -> tuple[str, Places]:
    """Return the code of a module, and where each of its nodes begins and ends."""
    state = _State(module.default_indent, module.default_newline, None)  # type: ignore[arg-type]
    state.found, state.spans = {}, {}
    module._codegen(state)
    places = Places(module, state.found)
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
    for one in ids:
        _SPANS.pop(one, None)


class _State(PositionProvidingCodegenState):
    """libcst's, without regular expressions, generators and objects: it sees every token."""

    found: dict[int, tuple[int, int, int, int]]
    spans: dict[int, tuple[list[str], int, int]]

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        if "\n" in value or "\r" in value:
            self._update_position(value)
        else:
            self.column += len(value)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._stack.append((len(self.tokens), self.line, self.column))  # type: ignore[arg-type]

    def after_codegen(self, node: cst.CSTNode) -> None:
        begun: Any = self._stack.pop()
        place, line, column = begun
        key = id(node)
        self.spans[key] = (self.tokens, place, len(self.tokens))
        if key not in self.found:  # else its own range is there, without white space
            self.found[key] = (line, column, self.line, self.column)

    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Any:
        return _Range(self, node, start_node, end_node)


class _Range:
    """Notes the range of a node, without the white space around it."""

    __slots__ = ("begin", "node", "start", "state", "stop")

    def __init__(self, state: _State, node: Any, start: Any, stop: Any) -> None:
        self.state, self.node, self.start, self.stop = state, node, start, stop

    def __enter__(self) -> None:
        self.begin = (self.state.line, self.state.column)

    def __exit__(self, *_: object) -> None:
        found = self.state.found
        begin = self.begin if self.start is None else found[id(self.start)][:2]
        end = (
            (self.state.line, self.state.column) if self.stop is None else found[id(self.stop)][2:]
        )
        found[id(self.node)] = (*begin, *end)
