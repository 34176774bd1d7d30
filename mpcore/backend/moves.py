"""What makes steps faster beside precision: layouts, threads, compilers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.step.result import StepResult

__all__ = ["Move", "Moves"]


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Move:
    """One change of how the steps of a model run, policy and batch aside.

    Attributes:
        how: what a user writes to have it.
        build: returns a model that is not prepared yet as the move has it.
        place: returns a batch as the move has it.
        stepper: of a prepared amp, its model, what makes the loss function of what is to be run as
            the model, and what ``amp.step`` is told beside the batch: ``step(*batch)``. None for
            ``amp.step``.
        wall: whether the clock on the wall alone can time it: CPU time adds threads up.
    """

    how: str
    build: Callable[[Any], Any] = _same
    place: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _same
    stepper: Callable[..., Callable[..., StepResult]] | None = None
    wall: bool = False


class Moves(Protocol):
    """Tells what can be changed."""

    def moves(self, model: Any, batch: tuple[Any, ...], cores: int, /) -> Mapping[str, Move]:
        """Return what may be tried with a model and a batch of it, by name."""
        ...
