"""What stands for a class around a scaler that is called with a loss: ``loss_scaler(loss, opt)``.

Such classes scale, go back, unscale, clip, step and update in one call (timm's NativeScaler, and
those of MAE, BEiT and Swin, which give back the gradients' norm).
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CALLED", "CallableScaler", "with_state"]

CALLED = re.compile(r"\w*scaler(\w*count)?", re.I)
"""Names of such classes, and of what they make."""


def with_state(state_dict: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """Return a scaler's ``state_dict``, with keys where only a run in float32 has it off.

    Scripts report the scale: ``scaler.state_dict()["scale"]``. One that a script has off has none.
    """

    @functools.wraps(state_dict)
    def state(scaler: Any) -> dict[str, Any]:
        found = state_dict(scaler)
        if found or not getattr(scaler, "_mpcore_was_on", False):
            return found
        return {
            "scale": scaler.get_scale(),
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "growth_interval": scaler.get_growth_interval(),
            "_growth_tracker": 0,
        }

    return state


class CallableScaler:
    """One of them.

    Args:
        scaler: a GradScaler.
        clip: clips gradients of parameters by their norm, which it returns.
    """

    def __init__(self, scaler: Any, clip: Callable[[list[Any], float], Any]) -> None:
        self._scaler, self._clip = scaler, clip

    def __call__(
        self,
        loss: Any,
        optimizer: Any,
        clip_grad: Any = None,
        parameters: Any = None,
        *,
        update_grad: bool = True,
        need_update: bool = True,
        **_: Any,
    ) -> Any:
        """Go back, and step where it is asked for; return the norm of the gradients."""
        self._scaler.scale(loss).backward()
        if not (update_grad and need_update):
            return None
        self._scaler.unscale_(optimizer)
        most = float(clip_grad) if clip_grad is not None else math.inf
        norm = self._clip(list(parameters), most) if parameters is not None else None
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm

    def __getattr__(self, name: str) -> Any:
        """Return what the scaler has: it may be used as one."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._scaler, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's; the scale too where it is off, in float32."""
        return {"scale": self._scaler.get_scale(), **self._scaler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the scaler's."""
        self._scaler.load_state_dict(state_dict)
