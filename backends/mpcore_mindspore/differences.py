"""Where MindSpore is known to differ: each shown on a few numbers."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROOFS"]


def _place_of_adams_eps() -> float:
    grad, eps = 1e-7, 1e-8
    moved = _moved(lambda params: nn.Adam(params, 1.0, eps=eps), grad, 1)
    return _relative(moved, np.full(1, -grad / (sqrt(grad**2) + eps)))


def _nesterov_of_momentum() -> float:
    rate, kept = 0.1, 0.9
    moved = _moved(lambda params: nn.Momentum(params, rate, kept, use_nesterov=True), 1.0, 2)
    buffers = (1.0, 1.0 + kept)
    return _relative(moved, np.full(1, -rate * sum(1.0 + kept * b for b in buffers)))


def _tanh_of_the_cpu() -> float:
    x = np.linspace(-4, 4, 4001, dtype=np.float32)
    found, right = ops.tanh(ms.Tensor(x)).asnumpy(), np.tanh(x.astype(np.float64))
    live = right != 0
    worst = float((np.abs(found - right)[live] / np.abs(right[live])).max())
    return worst if worst > 8 * 2.0**-23 else 0.0  # libraries give it to a few units


def _moved(make: Callable[[list[ms.Parameter]], Any], grad: float, steps: int) -> Any:
    param = ms.Parameter(ms.Tensor(np.zeros(1, np.float32)), name="weight")
    optimizer = make([param])
    for _ in range(steps):
        optimizer((ms.Tensor(np.full(1, grad, np.float32)),))
    return param.asnumpy()


def _relative(found: Any, right: Any) -> float:
    return float(np.linalg.norm(np.asarray(found, np.float64) - right) / np.linalg.norm(right))


PROOFS: dict[str, Callable[[], float]] = {
    "place_of_adams_eps_in_mindspore": _place_of_adams_eps,
    "nesterov_of_momentum": _nesterov_of_momentum,
    "tanh_of_the_cpu": _tanh_of_the_cpu,
}
"""By name of ``mpcore.capabilities.differences.DIFFERENCES``."""
