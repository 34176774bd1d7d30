"""The compiler of MindSpore's steps; see ``mpcore.backend.moves.Moves``.

Threads are set before MindSpore starts, and it has no other layout on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore_mindspore import modes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.step.result import StepResult
    from mpcore_mindspore.amp import MindsporeAmp

__all__ = ["built", "moves", "placed", "stepper"]

_JIT = "ms.jit"


def moves(model: Any, batch: tuple[Any, ...], cores: int) -> dict[str, str]:
    """Return the compiled step."""
    return {_JIT: 'prepare(..., compile="auto"), or amp.train_cell(loss_fn, compiled=True)'}


def built(move: str, model: Any) -> Any:
    """Return the network as it is."""
    return model


def placed(move: str, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the batch as it is."""
    return batch


def stepper(
    move: str,
    amp: MindsporeAmp,
    model: Any,
    make_loss: Callable[[Any], Callable[..., Any]],
    options: Mapping[str, Any],
) -> Callable[..., StepResult]:
    """Return a train cell that compiles itself, or ``amp.step``."""
    mode = "compiled" if move == _JIT else "eager"
    return modes.stepper(amp, make_loss(model), mode, **options)
