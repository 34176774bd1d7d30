"""Where the nodes of a module stand, and its code: both from one walk.

The positions are those of libcst's ``PositionProvider``, which walks over the module twice more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libcst.metadata import CodePosition, CodeRange, PositionProvider
from libcst.metadata.position_provider import PositionProvidingCodegenState

if TYPE_CHECKING:
    from collections.abc import Mapping

    import libcst as cst

__all__ = ["placed"]


def placed(module: cst.Module) -> tuple[str, Mapping[cst.CSTNode, CodeRange]]:
    """Return the code of a module, and where each of its nodes begins and ends."""
    provider = PositionProvider()
    state = _State(module.default_indent, module.default_newline, provider)
    module._codegen(state)
    positions: Any = provider._computed
    return "".join(state.tokens), positions


class _State(PositionProvidingCodegenState):
    """libcst's, without regular expressions and generators: it sees every token."""

    def add_token(self, value: str) -> None:
        self.tokens.append(value)
        if "\n" in value or "\r" in value:
            self._update_position(value)
        else:
            self.column += len(value)

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
        self.begin = CodePosition(self.state.line, self.state.column)

    def __exit__(self, *_: object) -> None:
        places: Any = self.state.provider._computed
        begin = self.begin if self.start is None else places[self.start].start
        end = CodePosition(self.state.line, self.state.column)
        places[self.node] = CodeRange(begin, end if self.stop is None else places[self.stop].end)
