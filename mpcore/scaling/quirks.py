"""What the loss scalers of other libraries do beside the plain machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpcore.errors import PolicyError, check_choice

__all__ = ["Quirks", "check_steps"]

_CHOICES = {
    "backoff_op": ("mul", "div", "mul_reciprocal"),
    "nonfinite_growth": ("keep", "clamp", "allow"),
    "state_dtype": ("float32", "float64"),
    "factor_dtype": ("float32", "float64"),
}


@dataclass(frozen=True)
class Quirks:
    """Constants that only imitations need; under the defaults none of them does anything.

    In the text of a rule they stand beside its other fields: ``deepspeed(hysteresis=3)``.

    Attributes:
        growth_warmup: finite steps more before the first growth and after each overflow.
        backoff_op: ``"mul"``, ``"div"`` or ``"mul_reciprocal"`` (times 1 / backoff_factor).
        nonfinite_growth: what a growth beyond float32 does: ``"keep"`` the old scale,
            ``"clamp"`` to the largest finite value, or ``"allow"`` inf.
        hysteresis: skipped steps before one back-off, >= 0.
        hysteresis_reset: what sets the count of hysteresis back: any of ``"good"`` (a finite
            step), ``"growth"``, ``"backoff"``, joined by ``+``.
        overflow_ratio: None, or the share of skipped steps since the last change, in [0, 1], from
            which an overflow backs off.
        raises_at_min: an overflow at the floor raises LossScaleError.
        abort_below: a back-off to this or less is undone and raises LossScaleError.
        max_skips: more skipped steps in a row raise LossScaleError; None for no limit.
        state_dtype: format the scale is kept in.
        factor_dtype: format the factors are rounded to before a product.
    """

    growth_warmup: int = 0
    backoff_op: str = "mul"
    nonfinite_growth: str = "keep"
    hysteresis: int = 1
    hysteresis_reset: str = "good"
    overflow_ratio: float | None = None
    raises_at_min: bool = False
    abort_below: float | None = None
    max_skips: int | None = None
    state_dtype: str = "float32"
    factor_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse unknown words and counts below zero."""
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for word in self.hysteresis_reset.split("+"):
            check_choice("hysteresis_reset", word, ("good", "growth", "backoff"))
        check_steps("growth_warmup", self.growth_warmup, 0)
        check_steps("hysteresis", self.hysteresis, 0)

    def factor(self, value: float) -> float:
        """Return a factor in the format that products are taken with."""
        return value if self.factor_dtype == "float64" else float(np.float32(value))


def check_steps(name: str, value: object, least: int) -> None:
    """Raise PolicyError unless ``value`` is a whole number of steps >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        msg = f"`{name}` must be a whole number of steps >= {least}, got {value!r}"
        raise PolicyError(msg)
