"""A step in float64, in which rounding is not seen."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Exact"]


class Exact(Protocol):
    """One framework in float64, without a policy."""

    def widened(self, model: Any, batch: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return model and batch in float64."""
        ...

    def true_gradients(self, model: Any, loss: Any) -> dict[str, Any]:
        """Return the gradients of a loss by parameter path, as ``StepResult.grads`` has them."""
        ...
