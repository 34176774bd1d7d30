"""The compiler of MindSpore's steps; see ``mpcore.backend.moves``.

Threads are set before MindSpore starts, and it has no other layout on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.backend.moves import Move
from mpcore_mindspore import modes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.step.result import StepResult
    from mpcore_mindspore.amp import MindsporeAmp

__all__ = ["moves"]


def moves(model: Any, batch: tuple[Any, ...], cores: int) -> dict[str, Move]:
    """Return the compiled step."""
    how = 'prepare(..., compile="auto"), or amp.train_cell(loss_fn, compiled=True)'
    return {"ms.jit": Move(how, stepper=_compiled)}


def _compiled(
    amp: MindsporeAmp,
    model: Any,
    make_loss: Callable[[Any], Callable[..., Any]],
    options: Mapping[str, Any],
) -> Callable[..., StepResult]:
    """Return a train cell that compiles itself."""
    return modes.stepper(amp, make_loss(model), "compiled", **options)
