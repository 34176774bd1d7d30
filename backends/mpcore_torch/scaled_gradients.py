"""Scaled gradients between ``backward`` and ``apply``: whoever wants to change them unscales first.

torch counts the writes into each tensor. Reading the counts costs some 50 ns a parameter, and
a step of ``amp.step`` with one loss and one batch, in which nobody can come between, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from mpcore.amp.guard import Guard

__all__ = ["ScaledGradients"]


class ScaledGradients:
    """What ``.grad`` held when ``amp.backward`` had ended.

    Attributes:
        seen: (parameter, its gradient, how often that was written to).
    """

    def __init__(self) -> None:
        """Know of none."""
        self.seen: list[tuple[nn.Parameter, torch.Tensor, int]] = []

    def take(self, params: Iterable[nn.Parameter]) -> None:
        """Remember the gradients of ``params`` as they are."""
        self.seen = [(p, p.grad, p.grad._version) for p in params if p.grad is not None]

    def forget(self) -> None:
        """Know of none."""
        self.seen = []

    def check(self, guard: Guard) -> None:
        """Raise GuardError if a gradient was written to, or put there, since."""
        if self._changed():
            guard.check(
                "gradients that were changed while they hold the loss scale (clipped, say)",
                "call `amp.unscale()` before you change `.grad`, or use "
                "`amp.apply(clip_norm=...)`; `amp.abort_step()` gives this step up",
            )

    def check_left(self) -> None:
        """Raise BackendError if the sums so far were taken away or changed by a loss function."""
        if self._changed():
            msg = (
                "gradients of the losses before must stay as they are while `loss_fn` runs, they "
                "were changed: leave out `zero_grad()` in it, amp.step clears them once"
            )
            raise BackendError(msg)

    def _changed(self) -> bool:
        return any(
            param.grad is not grad or grad._version != version for param, grad, version in self.seen
        )
