"""What the handlers of a ``try`` catch, and whether they raise."""

from __future__ import annotations

import libcst as cst

from mpcore_port.names import code_of

__all__ = ["caught", "raises"]


def caught(handler: cst.ExceptHandler) -> set[str]:
    """Return the exceptions that a handler names, as they are written; "" alone for ``except:``."""
    if handler.type is None:
        return {""}
    if isinstance(handler.type, cst.Tuple):
        return {code_of(element.value) for element in handler.type.elements}
    return {code_of(handler.type)}


def raises(handler: cst.ExceptHandler) -> bool:
    """Return whether one of a handler's own lines raises."""
    lines = [line for line in handler.body.body if isinstance(line, cst.SimpleStatementLine)]
    return any(isinstance(small, cst.Raise) for line in lines for small in line.body)
