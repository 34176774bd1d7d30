"""Weight decay of what a loss does not reach: MindSpore's own steps give it zeros as gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from mpcore_port.mindspore.loop.makers import maker_of, stepping
from mpcore_port.names import code_of
from mpcore_port.scan import arguments

if TYPE_CHECKING:
    from mpcore_port.mindspore.loop.description import Group, Line
    from mpcore_port.rule import At

__all__ = ["decays"]

_MOVED = "a Parameter that the loss does not reach is decayed; torch leaves it alone"
_ZEROS = ("0", "0.0", "0.", "None")


def decays(group: Group, at: At) -> list[str]:
    """Return what weight decay does in a step, where one of its optimizers is seen to decay."""
    return [_MOVED] if any(_decay(line, at) not in _ZEROS for line in group.steps) else []


def _decay(line: Line, at: At) -> str:
    """Return the weight decay of the optimizer that a line steps, as code; "0" if none is seen."""
    call = maker_of(stepping(line), at)
    if call is None or any(arg.star for arg in call.args):
        return "0"
    given = arguments(call, ()).get("weight_decay")
    adamw = (at.names.called(call) or "").rpartition(".")[2] == "AdamW"
    return code_of(given or cst.Float("0.01" if adamw else "0.0"))
