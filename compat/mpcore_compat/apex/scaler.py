"""``apex.amp.scaler.LossScaler`` over the core's machine."""

from __future__ import annotations

from mpcore.scaling.transition import LossScaleState, advance, initial_state
from mpcore_compat.apex.levels import loss_scale_of

__all__ = ["LossScaler"]


class LossScaler:
    """One loss scale, moved by each backward pass that it scales.

    Args:
        loss_scale: a constant, or "dynamic".
        init_scale: first dynamic scale, cut at ``max_loss_scale``.
        scale_factor: ignored, as in apex: the scale doubles and halves.
        scale_window: finite updates before a growth.
        min_loss_scale: floor, or None.
        max_loss_scale: cap.
        safe: mpcore's own rule; a constant scale is judged too.

    Attributes:
        dynamic: whether the scale moves.
        judges: whether overflows are looked for; apex does so for a dynamic scale only.
        rule: constants of the machine.
        state: state of the machine; ``good_steps`` is what apex calls ``unskipped``.

    Source: apex/amp/scaler.py, NVIDIA/apex e13873debc46.
    """

    def __init__(
        self,
        loss_scale: float | str,
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
        *,
        safe: bool = False,
    ) -> None:
        self.dynamic = loss_scale == "dynamic"
        self.judges = self.dynamic or safe
        self.rule = loss_scale_of(
            loss_scale,
            init_scale=init_scale,
            scale_window=scale_window,
            min_loss_scale=min_loss_scale,
            max_loss_scale=max_loss_scale,
            safe=safe,
        )
        self.state = initial_state(self.rule)
        self._has_overflow = False

    def loss_scale(self) -> float:
        """Return the scale of the next backward pass."""
        return float(self.state.scale)

    def clear_overflow_state(self) -> None:
        """Forget what was found."""
        self._has_overflow = False

    def found(self, *, overflow: bool) -> None:
        """Note what one optimizer's gradients held."""
        self._has_overflow = self._has_overflow or (overflow and self.judges)

    def update_scale(self) -> bool:
        """Move the scale by what was found; return whether the step has to be skipped."""
        self.state = advance(self.rule, self.state, not self._has_overflow)
        if not self.dynamic:  # apex counts here too; nothing depends on it
            self.state = self.state._replace(good_steps=self.state.good_steps + 1)
        return self._has_overflow

    @property
    def _loss_scale(self) -> float:  # scripts read and write these two
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self.state = self.state._replace(scale=float(value))

    @property
    def _unskipped(self) -> int:
        return int(self.state.good_steps)

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self.state = LossScaleState(*self.state)._replace(good_steps=int(value))
