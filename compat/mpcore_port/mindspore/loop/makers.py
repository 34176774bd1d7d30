"""Which call makes the optimizer that a step moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import dotted
from mpcore_port.scan import is_optimizer

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.description import Line
    from mpcore_port.rule import At

__all__ = ["maker_of", "model_of", "stepping"]


def stepping(line: Line) -> Any:
    """Return the optimizer in a step's line."""
    call = line.source.value
    return call.args[0].value if call.args else call.func.value


def maker_of(node: Any, at: At) -> cst.Call | None:
    """Return the call that makes an optimizer, if there is one alone."""
    whole = at.names.origins(node)
    made = [
        one for one in whole if isinstance(one, cst.Call) and is_optimizer(at.names.called(one))
    ]
    return made[0] if len(made) == 1 == len(whole) else None


def model_of(call: cst.Call) -> str:
    """Return the network whose parameters an optimizer is made of, as code; "" if none alone."""
    value = call.args[0].value if call.args else None
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return ""
    return dotted(value.func.value) if value.func.attr.value == "parameters" else ""
