"""What the port's own loss scalers have as MindSpore's have it."""

from __future__ import annotations

from typing import Any

from mpcore.scaling.transition import inverse

__all__: list[str] = []


class Scales:
    """Scales losses, and unscales gradients, by ``get_scale``."""

    def get_scale(self) -> float:
        """Return the scale of the next backward pass."""
        raise NotImplementedError

    def scale(self, inputs: Any) -> Any:
        """Return a loss times the scale, as MindSpore's loss scalers do."""
        return inputs * self.get_scale()

    def unscale(self, inputs: Any) -> tuple[Any, ...]:
        """Return gradients divided by the scale."""
        factor = inverse(self.get_scale())
        return tuple(grad * factor for grad in inputs)
