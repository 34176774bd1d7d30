"""How far one step of two runs lies apart that started from the same state, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.rows import relative

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights

__all__ = [
    "QUANTITIES",
    "STATISTICS",
    "Apart",
    "StepSizes",
    "StepTensors",
    "same_tensors",
    "step_sizes",
]

QUANTITIES = ("gradient", "update", "statistics", "zeros")
"""Of a step: gradients, what changed in parameters, and in running statistics; share of the
gradient's values that are exactly zero on one side alone."""

STATISTICS = ("running_mean", "running_var")

_LEAST = 1e-2  # of the average tensor's norm: what is smaller is measured against that
_MANY = 64  # values of a gradient whose zeros are counted


@dataclass(frozen=True)
class StepTensors:
    """What one step started from and did.

    Attributes:
        before: weights and statistics before it, float32.
        after: and after it.
        grads: true gradients; None for a skipped step.
        loss: of the step.
    """

    before: list[LayerWeights]
    after: list[LayerWeights]
    grads: list[LayerWeights] | None
    loss: float

    @property
    def skipped(self) -> bool:
        """Whether nothing moved."""
        return self.grads is None


@dataclass(frozen=True)
class Apart:
    """How far one tensor lies from its reference.

    Attributes:
        relative: L2 distance over ``size``; inf where it is no number.
        size: norm of the reference, or what it is measured against.
        own: norm of the own tensor.
        inner: inner product of (own - reference) and own: what another factor would do to it.
        share: norm of the larger one over that of the average tensor of its quantity.
    """

    relative: float
    size: float = 1.0
    own: float = 0.0
    inner: float = 0.0
    share: float = 1.0

    def scaled(self, error: float) -> float:
        """Return the relative distance if the own tensor were ``1 + error`` times as large."""
        square = (self.relative * self.size) ** 2
        square += 2.0 * error * self.inner + (error * self.own) ** 2
        return sqrt(max(square, 0.0)) / self.size


StepSizes = dict[str, dict[str, Apart]]
"""By quantity, and then by tensor (``path.array`` of the reference)."""


def step_sizes(reference: StepTensors, own: StepTensors) -> StepSizes:
    """Return how far the same step of two runs lies apart; no tensors where only one was skipped.

    A tensor smaller than a hundredth of the average one of its quantity is measured against that:
    gradients that are zero but for rounding have no direction.
    """
    found: StepSizes = {"loss": {"": Apart(relative(reference.loss, own.loss))}}
    if reference.skipped or own.skipped:
        return found
    grads = _pairs(reference.grads or [], own.grads or [])
    moves = _pairs(_moves(reference), _moves(own))
    found["gradient"] = _distances(grads)
    found["update"] = _distances({n: p for n, p in moves.items() if not _statistic(n)})
    found["statistics"] = _distances({n: p for n, p in moves.items() if _statistic(n)}, least=0.0)
    found["zeros"] = {n: Apart(_one_sided(a, b)) for n, (a, b) in grads.items() if a.size >= _MANY}
    return found


def same_tensors(one: Sequence[LayerWeights], other: Sequence[LayerWeights]) -> dict[str, str]:
    """Return what another model calls each tensor: layers meet in order, as in ``step_sizes``."""
    return {
        f"{layer.path}.{name}": f"{own.path}.{name}"
        for layer, own in zip(one, other, strict=False)  # one is empty if its run kept none
        for name in layer.arrays
    }


def _statistic(name: str) -> bool:
    return name.endswith(STATISTICS)


_Arrays = tuple["npt.NDArray[Any]", "npt.NDArray[Any]"]


def _pairs(reference: Sequence[LayerWeights], own: Sequence[LayerWeights]) -> dict[str, _Arrays]:
    return {
        f"{ref.path}.{name}": (ref.arrays[name], mine.arrays[name])
        for ref, mine in zip(reference, own, strict=True)
        for name in ref.arrays
    }


def _moves(step: StepTensors) -> list[LayerWeights]:
    """Return what the step changed."""
    return [
        type(new)(
            new.path,
            new.category,
            {n: a.astype(np.float64) - old.arrays[n] for n, a in new.arrays.items()},
        )
        for old, new in zip(step.before, step.after, strict=True)
    ]


def _distances(pairs: Mapping[str, _Arrays], least: float = _LEAST) -> dict[str, Apart]:
    wide = {
        n: (a.astype(np.float64).ravel(), b.astype(np.float64).ravel())
        for n, (a, b) in pairs.items()
    }
    norms = [float(np.linalg.norm(a)) for a, _ in wide.values()]
    average = float(np.sqrt(np.mean(np.square(norms)))) if norms else 0.0
    return {n: _apart(a, b, average, least * average) for n, (a, b) in wide.items()}


def _apart(a: npt.NDArray[Any], b: npt.NDArray[Any], average: float, floor: float) -> Apart:
    size, own = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    away = float(np.linalg.norm(b - a))
    share = max(size, own) / average if average else 1.0
    size = max(size, floor)
    if isnan(away):
        return Apart(inf, size or 1.0)
    if not size:
        return Apart(0.0 if not away else inf)
    return Apart(away / size, size, own, float((b - a) @ b), share)


def _one_sided(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    return float(((a == 0) != (b == 0)).mean())
