"""What starts a part of a Parameter: ``nn.init.constant_(table.weight[0], 0.0)``.

A part is a view in torch; to one of MindSpore nothing can be assigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.mindspore.rules.place import wording
from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.rule import At

__all__ = ["started_in_part"]


def started_in_part(made: Any, at: At) -> Any:
    """Return ``port.fill_part(x, i, init)`` for ``port.fill(x[i], init)``; else what was given."""
    if not isinstance(made, cst.Call) or code_of(made.func) != wording(at, "port.fill"):
        return made
    part = made.args[0].value
    if not isinstance(part, cst.Subscript):
        return made
    places = [_place(element.slice) for element in part.slice]
    place = places[0] if len(places) == 1 else f"({', '.join(places)})"
    init = code_of(made.args[1].value)
    text = f"port.fill_part({code_of(part.value)}, {place}, {init})"
    return cst.parse_expression(wording(at, text))


def _place(index: Any) -> str:
    if isinstance(index, cst.Index):
        return code_of(index.value)
    parts = [index.lower, index.upper, index.step]
    return f"slice({', '.join('None' if p is None else code_of(p) for p in parts)})"
