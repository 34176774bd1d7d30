"""Losses of labels beside scores that are ``-inf``, or the least float, as masked ones are.

MindSpore's ``nll_loss`` and ``cross_entropy`` add 0 times the sum of all log-probabilities where no
label is smoothed, and a class's weight times each of them: NaN where one is infinite (mindspore
2.10.0, ops/function/nn_func.py). torch takes the label's own alone.
"""

from __future__ import annotations

from typing import Any

from mindspore import ops
from mindspore.ops.function import nn_func

__all__: list[str] = []

_SMOOTHED: Any = getattr(nn_func, "_nll_loss", None)  # not public: another version may not have it


def _nll_loss(
    inputs: Any,
    target: Any,
    target_dim: int = -1,
    weight: Any = None,
    ignore_index: Any = None,
    reduction: str = "none",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the negative log-probabilities of labels, of the axis ``target_dim``."""
    if label_smoothing > 0.0:
        return _SMOOTHED(
            inputs, target, target_dim, weight, ignore_index, reduction, label_smoothing
        )
    if target.ndim == inputs.ndim - 1:
        target = target.expand_dims(target_dim)
    ignored = None
    if ignore_index is not None:
        ignored = ops.equal(target, ignore_index)
        target = target.masked_fill(ignored, ops.cast(0, target.dtype))
    loss = -ops.gather_d(inputs, target_dim, target)
    weights = ops.ones_like(loss)
    if weight is not None:
        weights = ops.gather(weight, target, 0)
        loss = loss * weights
    if ignored is not None:
        loss = loss.masked_fill(ignored, ops.cast(0, loss.dtype))
        weights = weights.masked_fill(ignored, ops.cast(0, weights.dtype))
    loss = loss.squeeze(target_dim)
    if reduction == "sum":
        loss = loss.sum()
    elif reduction == "mean":
        loss = loss.sum() / weights.sum()
    return loss + 0.0  # as theirs ends in a sum: its gradient needs no value that may be changed


if _SMOOTHED is not None:
    nn_func._nll_loss = _nll_loss
