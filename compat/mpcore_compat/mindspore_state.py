"""The core's transition over the Parameters of MindSpore's scalers; runs in compiled graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import ops

from mpcore.scaling.transition import LossScale, transition

__all__ = ["factors", "moved", "safe_rule"]


def _same(value: Any) -> Any:
    return value


def safe_rule(scale: float, factor: float, **changes: Any) -> LossScale:
    """Return mpcore's own rule for MindSpore's arguments, in float32 as the Parameters are.

    Raises:
        PolicyError: the scale is not in [1, 2**24], or the factor is not > 1.
    """
    return LossScale.of(init_scale=float(np.float32(scale)), **factors(factor), **changes)


def factors(factor: float) -> dict[str, Any]:
    """Return the fields of a rule that grows and backs off by one ``factor``."""
    value = float(np.float32(factor))
    return {"growth_factor": value, "backoff_factor": value}


def moved(rule: LossScale, scale: Any, good: Any, finite: Any) -> tuple[Any, Any]:
    """Return (next scale, next count of finite steps).

    Args:
        rule: constants of the machine.
        scale: float32 Tensor, shape ().
        good: finite steps since the last change, int32 Tensor, shape ().
        finite: bool Tensor, shape ().
    """
    if rule.preset == "":
        # What was loaded or assigned may be inf, from which no step would return.
        scale = ops.minimum(ops.maximum(scale, rule.min_scale), rule.max_scale)
    zero = good * 0
    state = (scale, good, zero, zero, zero, zero, zero, zero)
    new = transition(rule, state, finite, ops.where, _same)
    return new[0], new[1]
