"""Which scales and counts a rule of the loss scale can come to; anything else is no state of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mpcore.errors import CheckpointError
from mpcore.scaling.transition import LossScale, LossScaleState, initial_state, narrow

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_state", "scale_range"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT32_MAX = 2**31 - 1


def scale_range(rule: LossScale) -> tuple[float, float]:
    """Return the smallest and the largest scale that ``rule`` can reach.

    Examples:
        >>> scale_range(LossScale()), scale_range(LossScale.named("keras"))
        ((1.0, 16777216.0), (0.0, inf))
    """
    first = initial_state(rule).scale
    if rule.kind != "dynamic":
        return first, first
    low, high = rule.min_scale, rule.max_scale
    if rule.quirks.nonfinite_growth != "allow":
        high = min(high, _FLOAT32_MAX)
    # MindSpore's manager takes a factor below 1: good steps lead down then, bad ones up.
    if rule.growth_factor < 1:
        low = 0.0
    if (rule.backoff_factor < 1) == (rule.quirks.backoff_op != "mul"):
        high = math.inf
    return min(low, first), max(high, first)


def check_state(
    rule: LossScale, state: LossScaleState, names: Mapping[str, str] | None = None
) -> None:
    """Raise CheckpointError unless ``state`` is one that ``rule`` can be in.

    Args:
        rule: the machine.
        state: numbers on the host.
        names: what the fields of the state are called in the message.
    """
    shown = names or {name: f"state.{name}" for name in LossScaleState._fields}
    low, high = scale_range(rule)
    scale = float(state.scale)
    if not low <= scale <= high:
        holds = f"{low!r}" if low == high else f"in [{low!r}, {high!r}]"
        msg = f"`{shown['scale']}` must be {holds} under {rule}, got {scale!r}"
        raise CheckpointError(msg)
    if scale != narrow(rule, scale) and scale not in (low, high):
        near = narrow(rule, scale)
        kept = rule.quirks.state_dtype
        msg = f"`{shown['scale']}` must be a {kept} value, got {scale!r}, not {near!r}"
        raise CheckpointError(msg)
    for name, (least, most) in _count_ranges(rule, state).items():
        value = getattr(state, name)
        if not least <= value <= most:
            msg = (
                f"`{shown.get(name, name)}` must be a whole number in [{least}, {most}] under "
                f"{rule}, got {value!r}"
            )
            raise CheckpointError(msg)


def _count_ranges(rule: LossScale, state: LossScaleState) -> dict[str, tuple[int, int]]:
    quirks = rule.quirks
    moves = rule.kind == "dynamic"
    shares = moves and quirks.overflow_ratio is not None
    waits = moves and not shares and quirks.hysteresis > 1
    most_bad = quirks.hysteresis - 1 if "backoff" in quirks.hysteresis_reset else _INT32_MAX
    return {
        "good_steps": (-quirks.growth_warmup, rule.growth_interval - 1 if moves else 0),
        "skipped_steps": (0, _INT32_MAX),
        "bad_steps": (0, most_bad if waits else 0),
        "skips_in_a_row": (0, 0 if quirks.max_skips is None else _INT32_MAX),
        "steps": (0, _INT32_MAX if shares else 0),
        "last_change": (-1, state.steps - 1),
        "overflows": (0, state.steps - state.last_change - 1),
    }
