"""What torch.jit.script and torch.jit.trace give, where a script asks for what no network has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["EXPORTED", "is_exported"]

EXPORTED = "what it gives is saved or looked into, a graph of torch's: use mindspore.export"
_OF_GRAPHS = frozenset({"code", "graph", "inlined_graph", "save", "save_to_buffer"})


def is_exported(call: cst.Call, at: At) -> bool:
    """Return whether a scripted or traced network is asked for its graph somewhere in the file."""
    if at.names.called(call) not in ("torch.jit.script", "torch.jit.trace"):
        return False
    asked = [node for node in at.names.by_type[cst.Attribute] if node.attr.value in _OF_GRAPHS]
    return any(call in (node.value, *at.names.origins(node.value)) for node in asked)
