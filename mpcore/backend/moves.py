"""What makes steps faster beside precision: layouts, threads, compilers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.step.result import StepResult

__all__ = ["Moves"]

AmpT = TypeVar("AmpT", contravariant=True)


class Moves(Protocol[AmpT]):
    """What can be changed about how the steps of a model run, policy and batch aside."""

    def moves(self, model: Any, batch: tuple[Any, ...], cores: int, /) -> Mapping[str, str]:
        """Return what may be tried with a model, by name, and how a user gets it."""
        ...

    def built(self, move: str, model: Any, /) -> Any:
        """Return a model that is not prepared yet as the move has it."""
        ...

    def placed(self, move: str, batch: tuple[Any, ...], /) -> tuple[Any, ...]:
        """Return a batch as the move has it."""
        ...

    def stepper(
        self,
        move: str,
        amp: AmpT,
        model: Any,
        make_loss: Callable[[Any], Callable[..., Any]],
        options: Mapping[str, Any],
        /,
    ) -> Callable[..., StepResult]:
        """Return ``step(*batch)`` as the move has it.

        Args:
            move: its name.
            amp: what was prepared.
            model: of it.
            make_loss: returns the loss function that runs what it is given as the model.
            options: what ``amp.step`` is told beside the batch.
        """
        ...
