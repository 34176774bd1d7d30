"""Where flax is known to differ: shown on a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from flax import nnx

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROOFS"]


def _biased_moving_variance() -> float:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    norm = nnx.BatchNorm(3, momentum=0.0, rngs=nnx.Rngs(0))
    norm(x)
    unbiased = x.var(0, ddof=1)
    found = np.asarray(norm.var.get_raw_value())
    return float(np.linalg.norm(found - unbiased) / np.linalg.norm(unbiased))


PROOFS: dict[str, Callable[[], float]] = {"biased_moving_variance_in_jax": _biased_moving_variance}
"""By name of ``mpcore.capabilities.differences.DIFFERENCES``."""
