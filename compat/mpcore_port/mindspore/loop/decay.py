"""Weight decay of what a loss does not reach: MindSpore's own steps give it zeros as gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.mindspore.loop.makers import maker_of, model_of, stepping
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.description import Group, Line
    from mpcore_port.rule import At

__all__ = ["decays"]

_MOVED = "a Parameter that the loss does not reach is decayed; torch leaves it alone"
_MAY = "if its optimizer decays weights: " + _MOVED
_UNSEEN = ""
_ZEROS = ("0", "0.0", "0.", "None")


def decays(group: Group, at: At) -> list[str]:
    """Return what weight decay does in a step, unless its optimizers are seen not to decay."""
    found = {_decay(line, at) for line in group.steps}
    if found - {_UNSEEN, *_ZEROS}:
        return [_MOVED]
    return [_MAY] if _UNSEEN in found else []


def _decay(line: Line, at: At) -> str:
    """Return the weight decay of the optimizer that a line steps, as code."""
    call = maker_of(stepping(line), at)
    if call is None or any(arg.star for arg in call.args):
        return _UNSEEN
    path = at.names.called(call) or ""
    if path.startswith("torch.optim."):
        given = arguments(call, ()).get("weight_decay")
        decay = code_of(given or cst.Float("0.01" if path.endswith(".AdamW") else "0.0"))
        # Groups may have decays of their own.
        return decay if model_of(call) or decay not in _ZEROS else _UNSEEN
    return _UNSEEN
