"""Classes of scripts around an optimizer."""

from __future__ import annotations

from typing import Any

from mindspore.experimental import optim

__all__ = ["HoldsOptimizer"]


class HoldsOptimizer:
    """A class of a script around an optimizer: what a loop asks an optimizer for, asked of it.

    Called by gradients it leaves them to the parameters, as ``step`` wants them.
    """

    step: Any

    @property
    def parameters(self) -> Any:
        """The parameters that the optimizer moves.

        Raises:
            AttributeError: it holds none.
        """
        for held in vars(self).values():
            if isinstance(held, (optim.Optimizer, HoldsOptimizer)):
                return held.parameters
        msg = f"{type(self).__name__} holds no optimizer"
        raise AttributeError(msg)

    def __call__(self, gradients: Any) -> None:
        """Apply one step; ``gradients`` as ``parameters``."""
        for param, grad in zip(self.parameters, gradients, strict=True):
            param.grad = grad
        self.step()
