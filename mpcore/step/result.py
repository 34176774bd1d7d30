"""The record of what one step did."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

__all__ = ["StepResult", "StepValues", "shares"]


class StepValues(NamedTuple):
    """What a transaction gives back, on its device; the first six in ``transact``'s order.

    Attributes:
        loss: unscaled, float32, shape ().
        stepped: whether weights moved, one bool for each optimizer that took part.
        norms: L2 norm of each true gradient, float32, shape (tensors,).
        scale: loss scale of this step.
        next_scale: loss scale of the next one.
        dropped: micro-batches left out.
        lost: updates that rounding lost, where they were counted
            (``mpcore.step.stagnation.measures``): float32, shape (tensors, 2); each row is (lost,
            sampled elements with a non-zero gradient), see
            ``mpcore.step.stagnation.count_lost``. A tensor that is not looked at, and every
            tensor of a skipped step, has (0, 0). None where they were not counted.
    """

    loss: Any
    stepped: Any
    norms: Any
    scale: Any
    next_scale: Any
    dropped: Any
    lost: Any = None


class StepResult:
    """What one step did. Values stay on their device until they are looked at.

    Attributes:
        step: its number, from 1, as the prepared model counts them; 0 until the step has ended.
        grads: true float32 gradients by parameter path, before clipping, in the framework's
            own tensors; empty unless the step was asked to keep them.
    """

    __slots__ = ("_cache", "_names", "_optimizers", "_to_numpy", "_values", "grads", "step")

    def __init__(
        self,
        values: StepValues,
        names: Sequence[str],
        to_numpy: Callable[[Any], Any],
        grads: dict[str, Any] | None = None,
        optimizers: Sequence[str] = ("optimizer",),
    ) -> None:
        """Wrap what one step gave back.

        Args:
            values: the parts, on their device.
            names: parameter paths, in the order of ``norms`` and ``lost``.
            to_numpy: turns one of the values into a numpy array or number.
            grads: gradients by parameter path, if kept.
            optimizers: names of the optimizers that took part, in the order of ``stepped``.
        """
        self._values = values
        self._names = names
        self._to_numpy = to_numpy
        self._optimizers = optimizers
        self._cache: dict[str, Any] = {}
        self.grads = grads or {}
        self.step = 0

    def _value(self, part: str) -> Any:
        if part not in self._cache:
            self._cache[part] = np.asarray(self._to_numpy(getattr(self._values, part)))
        return self._cache[part]

    @property
    def loss(self) -> float:
        """Unscaled loss, as the loss function returned it, in float32.

        With several losses their sum, with micro-batches the mean over those that were kept.
        """
        return float(self._value("loss"))

    @property
    def stepped(self) -> bool:
        """Whether weights, optimizer state and buffers moved, of every optimizer."""
        return bool(np.all(self._value("stepped")))

    @property
    def stepped_by(self) -> dict[str, bool]:
        """Whether each optimizer moved; they differ only under skip_scope="optimizer"."""
        flags = np.atleast_1d(self._value("stepped")).tolist()
        return dict(zip(self._optimizers, map(bool, flags), strict=True))

    @property
    def grad_norm(self) -> float:
        """L2 norm of all true gradients before clipping; non-finite on a skipped step."""
        return float(np.linalg.norm(self._value("norms").astype(np.float64)))

    @property
    def scale(self) -> float:
        """Loss scale that this step was run with."""
        return float(self._value("scale"))

    @property
    def next_scale(self) -> float:
        """Loss scale of the next step."""
        return float(self._value("next_scale"))

    @property
    def names(self) -> tuple[str, ...]:
        """Paths of the parameters whose gradients were judged."""
        return tuple(self._names)

    @property
    def dropped(self) -> int:
        """Number of micro-batches left out because they overflowed."""
        return int(self._value("dropped"))

    @property
    def counts_lost(self) -> bool:
        """Whether this step counted the updates that were lost to rounding."""
        return self._values.lost is not None

    def lost_counts(self) -> dict[str, npt.NDArray[Any]]:
        """Return (lost updates, updates looked at) by parameter path; empty if not counted."""
        return dict(zip(self._names, self._value("lost"), strict=True)) if self.counts_lost else {}

    @property
    def lost_updates(self) -> dict[str, float] | None:
        """Share of the updates that rounding lost, in [0, 1], by layer path.

        At most 4096 elements of a tensor are looked at; those with a zero gradient do not count.
        Empty after a skipped step, None where it was not counted
        (``prepare(count_lost_updates=...)``).
        """
        return shares(self._names, self._value("lost")) if self.counts_lost else None

    def lost_only(self) -> StepResult:
        """Return a record of nothing but ``stepped`` and ``lost_counts``: it keeps little alive."""
        values = StepValues(None, self._values.stepped, None, None, None, None, self._values.lost)
        return StepResult(values, self._names, self._to_numpy, None, self._optimizers)

    @property
    def culprit(self) -> str | None:
        """Path of the first parameter with a non-finite gradient; None where the step was taken."""
        if self.stepped:
            return None
        bad = np.flatnonzero(~np.isfinite(self._value("norms")))
        return self._names[int(bad[0])] if bad.size else None

    @property
    def forward_overflow(self) -> bool:
        """Whether the loss itself is not finite: no loss scale can mend that."""
        return not math.isfinite(self.loss)

    @property
    def reason(self) -> str | None:
        """Why the step was skipped, in words; None where the step was taken."""
        if self.stepped:
            return None
        if self.forward_overflow:
            return f"the loss is {self.loss}: the forward pass left the range of its format"
        if self.dropped and np.isnan(self._value("norms")).all():
            return f"each of the {self.dropped} micro-batches overflowed, at scale {self.scale:g}"
        if self.culprit is None:
            return f"the device's overflow flag was raised, at scale {self.scale:g}"
        return f"non-finite gradients, first in {self.culprit}, at scale {self.scale:g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record of this step, ready for JSON; non-finite numbers become text."""
        record: dict[str, Any] = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "scale": self.scale,
            "next_scale": self.next_scale,
            "stepped": self.stepped,
            "reason": self.reason,
            "culprit": self.culprit,
        }
        if len(self._optimizers) > 1:
            record["stepped_by"] = self.stepped_by
        if self.dropped:
            record["dropped"] = self.dropped
        if self.counts_lost:
            record["lost_updates"] = self.lost_updates
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }

    def __repr__(self) -> str:
        """Return the record in one line."""
        inside = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"StepResult({inside})"


def shares(names: Iterable[str], counts: npt.NDArray[Any]) -> dict[str, float]:
    """Return the share of lost updates, in [0, 1], by layer path.

    Args:
        names: parameter paths; a layer's path is what stands before the last dot.
        counts: (lost, updates) of each, shape (tensors, 2). Layers without updates are left out.
    """
    total: dict[str, npt.NDArray[np.float64]] = {}
    for name, pair in zip(names, np.asarray(counts, np.float64), strict=True):
        layer = name.rpartition(".")[0] or name
        total[layer] = total.get(layer, np.zeros(2)) + pair
    return {layer: float(lost / of) for layer, (lost, of) in total.items() if of > 0}
