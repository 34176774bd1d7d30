"""What starts a part of a Parameter, or one in another shape.

``nn.init.constant_(table.weight[0], 0.0)``, ``nn.init.xavier_uniform_(w.view(w.shape[0], -1))``: a
view in torch; to one of MindSpore nothing can be assigned.
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
    """Return ``port.fill_part(x, i, init)`` for ``port.fill(x[i], init)``; else what was given.

    For ``port.fill(x.view(2, 3), init)`` it is ``port.fill_seen(x, init, 2, 3)``.
    """
    if not isinstance(made, cst.Call) or code_of(made.func) != wording(at, "port.fill"):
        return made
    part = made.args[0].value
    if isinstance(part, cst.Call):
        return _seen(made, part, at)
    if not isinstance(part, cst.Subscript):
        return made
    places = [_place(element.slice) for element in part.slice]
    place = places[0] if len(places) == 1 else f"({', '.join(places)})"
    init = code_of(made.args[1].value)
    text = f"port.fill_part({code_of(part.value)}, {place}, {init})"
    return cst.parse_expression(wording(at, text))


def _seen(made: cst.Call, seen: cst.Call, at: At) -> Any:
    """Return what starts ``x`` as ``x.view(...)`` has it."""
    func = seen.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "view" or not seen.args:
        return made
    if any(arg.keyword is not None or arg.star for arg in seen.args):
        return made
    shape = ", ".join(code_of(arg.value) for arg in seen.args)
    text = f"port.fill_seen({code_of(func.value)}, {code_of(made.args[1].value)}, {shape})"
    return cst.parse_expression(wording(at, text))


def _place(index: Any) -> str:
    if isinstance(index, cst.Index):
        return code_of(index.value)
    parts = [index.lower, index.upper, index.step]
    return f"slice({', '.join('None' if p is None else code_of(p) for p in parts)})"
