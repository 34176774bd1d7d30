"""Scalers that another file of a script makes, as the steps of MindSpore's own form use them."""

from __future__ import annotations

from typing import Any

from mpcore.errors import BackendError
from mpcore_port_runtime.scales import Scales
from mpcore_port_runtime.training import GradScaler

__all__ = ["loss_scaler"]


class HandedScaler(Scales):
    """A scaler of another file as MindSpore's own are used, on the same state."""

    def __init__(self, scaler: GradScaler | None) -> None:
        """Take None for none: it scales by 1, and looks for no overflows."""
        self._scaler = scaler

    @property
    def dynamic(self) -> bool:
        """Whether steps are skipped where gradients overflow."""
        return self._scaler is not None and self._scaler.is_enabled()

    def get_scale(self) -> float:
        """Return the scale of the next backward pass."""
        return self._scaler.get_scale() if self._scaler is not None else 1.0

    def adjust(self, grads_finite: Any) -> bool:
        """Move the scale by whether gradients were finite; return whether it is dynamic."""
        if self._scaler is not None:
            self._scaler._judge(finite=bool(grads_finite))
        return self.dynamic


def loss_scaler(scaler: Any) -> HandedScaler:
    """Return a scaler with the methods of MindSpore's: ``scale``, ``unscale``, ``adjust``.

    Args:
        scaler: a ``GradScaler`` of the port, or None where nothing is scaled.

    Raises:
        BackendError: it is something else.
    """
    if scaler is None or isinstance(scaler, GradScaler):
        return HandedScaler(scaler)
    msg = f"`scaler` must be a GradScaler or None, got {type(scaler).__name__}: port its file, too"
    raise BackendError(msg)
