"""How the steps of a backend can be run: eager or compiled, and on which device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from mpcore.step.result import StepResult

__all__ = ["Modes"]


AmpT = TypeVar("AmpT", contravariant=True)


class Modes(Protocol[AmpT]):
    """How the steps of an experiment are run in one framework."""

    MODES: tuple[str, ...]
    """Those of ``"eager"`` and ``"compiled"`` that it has; ``amp.step`` by itself runs in the
    first."""

    def begin(self, mode: str, device: str) -> None:
        """Set what must be set before a model is built: models and batches are made there.

        Raises:
            BackendError: the framework has no such device here.
        """
        ...

    def called(self, model: Any, mode: str) -> Any:
        """Return what the loss function is to call for ``model``."""
        ...

    def stepper(
        self,
        amp: AmpT,
        loss_fn: Any,
        mode: str,
        *,
        clip_norm: float | None = None,
        micro_batches: int = 1,
    ) -> Callable[..., StepResult]:
        """Return ``step(*batch, keep_grads=False)`` that runs in ``mode``."""
        ...

    def one_thread(self) -> AbstractContextManager[None]:
        """Return a context in which one thread computes; ``nullcontext()`` where none can."""
        ...
