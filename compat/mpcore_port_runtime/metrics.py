"""Metrics of torchmetrics that training scripts keep: accuracy, mean and sum of what is logged.

Counts are whole numbers on the host: nothing of them is differentiated. One process: values of
others are not gathered.
Source: torchmetrics 1.9.0, ``torchmetrics/classification/accuracy.py``, ``stat_scores.py`` and
``aggregation.py``, ``torchmetrics/functional/classification/stat_scores.py``.
"""

from __future__ import annotations

import warnings
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mpcore.errors import BackendError
from mpcore_port_runtime.refusal import PortWarning

__all__ = [
    "Accuracy",
    "BinaryAccuracy",
    "MeanMetric",
    "MulticlassAccuracy",
    "MultilabelAccuracy",
    "SumMetric",
    "accuracy",
]

_TASKS = ("binary", "multiclass", "multilabel")
_AVERAGES = ("micro", "macro", "weighted", "none", None)
_LEFT = ("compute_on_step", "dist_sync_on_step", "sync_on_compute", "compute_with_cache")
"""Settings of torchmetrics' Metric that change nothing in one process."""


class _Kept:
    """What a metric does beside its counts."""

    _counts: Any

    def __init__(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(_LEFT))
        if unknown:
            msg = (
                f"{type(self).__name__} of a port does not take {', '.join(unknown)}; leave it out"
            )
            raise BackendError(msg)
        self.reset()

    def __call__(self, *values: Any, **given: Any) -> Tensor:
        """Return the value of this batch alone, and keep its counts, as ``forward`` does."""
        kept = self._counts
        self.reset()
        self.update(*values, **given)
        alone = self.compute()
        self._counts = kept + self._counts
        return alone

    forward = __call__

    def reset(self) -> None:
        """Forget what was seen."""
        self._counts = np.zeros(1)

    def update(self, *values: Any, **given: Any) -> None:
        """Keep the counts of a batch."""
        raise NotImplementedError

    def compute(self) -> Tensor:
        """Return the value over all batches since the last reset."""
        raise NotImplementedError

    def to(self, *place: Any, **how: Any) -> Any:
        """Return the metric: its counts lie on the host."""
        del place, how
        return self

    cpu = cuda = train = eval = to


class Accuracy(_Kept):
    """The share of what was foretold rightly, as ``torchmetrics.Accuracy``.

    Args:
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        threshold: above which a probability is a yes (binary, multilabel).
        num_classes: how many classes there are; multiclass needs it.
        num_labels: how many labels there are; multilabel needs it.
        average: ``"micro"`` over all, ``"macro"`` and ``"weighted"`` over classes or labels, or
            ``"none"``: each of them.
        multidim_average: ``"global"``; a value for each sample is refused.
        top_k: among how many of the highest scores the right class may be (multiclass).
        ignore_index: of targets, what is left out.
        validate_args: taken and ignored: shapes that do not fit raise anyway.
        **kwargs: settings of torchmetrics' Metric that change nothing in one process.

    Raises:
        BackendError: a value that this imitation does not have.
    """

    def __init__(
        self,
        task: str,
        threshold: float = 0.5,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: str | None = "micro",
        multidim_average: str | None = "global",
        top_k: int = 1,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        del validate_args
        many = {"binary": 1, "multiclass": num_classes, "multilabel": num_labels}
        if task not in _TASKS:
            msg = f"Accuracy(task={task!r}): one of {', '.join(_TASKS)}"
            raise BackendError(msg)
        size = many[task]
        if not isinstance(size, int):
            needed = "num_classes" if task == "multiclass" else "num_labels"
            msg = f"Accuracy(task={task!r}) needs {needed}, a whole number, got {size!r}"
            raise BackendError(msg)
        if average not in _AVERAGES or multidim_average != "global":
            msg = (
                f"Accuracy(average={average!r}, multidim_average={multidim_average!r}): an average "
                "of micro, macro, weighted or none, over all samples"
            )
            raise BackendError(msg)
        self.task, self.threshold, self.average = task, threshold, average
        self.size, self.top_k, self.ignore_index = size, top_k or 1, ignore_index
        super().__init__(**kwargs)

    def reset(self) -> None:
        """Forget what was seen."""
        self._counts = np.zeros((4, self.size), np.int64)

    def update(self, preds: Any, target: Any) -> None:
        """Keep the counts of a batch.

        Args:
            preds: scores ``(N, C, ...)`` or classes ``(N, ...)``; probabilities, scores or labels
                in the shape of ``target`` where the task is no multiclass one. Scores outside of
                0 to 1 are sent through a sigmoid there.
            target: whole numbers ``(N, ...)``; multilabel ``(N, L, ...)``.
        """
        found, wanted = _array(preds), _array(target)
        counted = self._of_classes if self.task == "multiclass" else self._of_labels
        self._counts = self._counts + counted(found, wanted)

    def _of_classes(self, found: Any, wanted: Any) -> Any:
        if found.ndim == wanted.ndim + 1:
            best = np.argsort(-found, axis=1, kind="stable")[:, : self.top_k]
            if self.top_k == 1:
                best = np.expand_dims(found.argmax(axis=1), 1)
            best = np.moveaxis(best, 1, -1).reshape(-1, self.top_k)
        elif self.top_k == 1:
            best = found.astype(np.int64).reshape(-1, 1)
        else:
            msg = f"Accuracy(top_k={self.top_k}) needs scores (N, C, ...), got {found.shape}"
            raise BackendError(msg)
        wanted = wanted.reshape(-1).astype(np.int64)
        if len(best) != len(wanted):
            msg = f"Accuracy: preds {found.shape} and target do not fit, {len(wanted)} targets"
            raise BackendError(msg)
        if self.ignore_index is not None:
            best, wanted = best[wanted != self.ignore_index], wanted[wanted != self.ignore_index]
        for what, of in (("preds", best), ("target", wanted)):
            if of.size and not 0 <= of.min() <= of.max() < self.size:
                msg = f"Accuracy(num_classes={self.size}): {what} has {of.min()} to {of.max()}"
                raise BackendError(msg)
        hit = (best == wanted[:, None]).any(1)
        right = np.bincount(wanted[hit], minlength=self.size)[: self.size]
        every = np.bincount(wanted, minlength=self.size)[: self.size]
        named = np.bincount(best.reshape(-1), minlength=self.size)[: self.size]
        return np.stack([right, named - right, np.zeros_like(right), every - right])

    def _of_labels(self, found: Any, wanted: Any) -> Any:
        if found.shape != wanted.shape:
            msg = f"Accuracy: preds {found.shape} and target {wanted.shape} must have one shape"
            raise BackendError(msg)
        if np.issubdtype(found.dtype, np.floating):
            if not ((found >= 0) & (found <= 1)).all():
                found = 1 / (1 + np.exp(-found))
            found = found > self.threshold
        across = (0, *range(2, found.ndim)) if self.task == "multilabel" else None
        kept = (
            np.ones(wanted.shape, bool)
            if self.ignore_index is None
            else wanted != self.ignore_index
        )
        yes, right = wanted == 1, found.astype(bool) == (wanted == 1)
        every = [right & yes, ~right & ~yes, right & ~yes, ~right & yes]
        return np.stack([np.atleast_1d((one & kept).sum(axis=across)) for one in every])

    def compute(self) -> Tensor:
        """Return the share over all batches since the last reset: a float32 scalar, or one each."""
        right, wrong, passed, missed = self._counts.astype(np.float64)
        if self.task != "multiclass":
            each = _share(right + passed, right + passed + wrong + missed)
        else:
            each = _share(right, right + missed)
        if self.task == "binary":
            return Tensor(each[0], ms.float32)
        if self.average in ("none", None):
            return Tensor(each, ms.float32)
        if self.average == "micro":
            good = right.sum() + passed.sum()
            rest = missed.sum() + (wrong.sum() if self.task == "multilabel" else 0)
            return Tensor(_share(good, good + rest), ms.float32)
        weights = np.ones(self.size) if self.average == "macro" else right + missed
        if self.task == "multiclass" and self.average == "macro":
            seen = right + wrong + missed if self.top_k == 1 else right + missed
            weights = np.where(seen == 0, 0.0, weights)
        return Tensor(_share(weights * each, weights.sum()).sum(), ms.float32)


class BinaryAccuracy(Accuracy):
    """``torchmetrics.classification.BinaryAccuracy``."""

    def __init__(
        self,
        threshold: float = 0.5,
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        del validate_args
        super().__init__(
            "binary",
            threshold,
            multidim_average=multidim_average,
            ignore_index=ignore_index,
            **kwargs,
        )


class MulticlassAccuracy(Accuracy):
    """``torchmetrics.classification.MulticlassAccuracy``: its average is macro."""

    def __init__(
        self,
        num_classes: int | None = None,
        top_k: int = 1,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        del validate_args
        super().__init__(
            "multiclass",
            num_classes=num_classes,
            average=average,
            multidim_average=multidim_average,
            top_k=top_k,
            ignore_index=ignore_index,
            **kwargs,
        )


class MultilabelAccuracy(Accuracy):
    """``torchmetrics.classification.MultilabelAccuracy``: its average is macro."""

    def __init__(
        self,
        num_labels: int,
        threshold: float = 0.5,
        average: str | None = "macro",
        multidim_average: str = "global",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        del validate_args
        super().__init__(
            "multilabel",
            threshold,
            num_labels=num_labels,
            average=average,
            multidim_average=multidim_average,
            ignore_index=ignore_index,
            **kwargs,
        )


def accuracy(preds: Any, target: Any, task: str, **settings: Any) -> Tensor:
    """Return the accuracy of one batch, as ``torchmetrics.functional.accuracy``."""
    return Accuracy(task, **settings)(preds, target)


class _OfValues(_Kept):
    """What the mean and the sum of values have in common: what becomes of NaN."""

    def __init__(self, nan_strategy: Any = "warn", **kwargs: Any) -> None:
        named = ("error", "warn", "ignore", "disable")
        if nan_strategy not in named and not isinstance(nan_strategy, float):
            msg = (
                f"{type(self).__name__}(nan_strategy={nan_strategy!r}): a float, or one of "
                f"{', '.join(named)}"
            )
            raise BackendError(msg)
        self.nan_strategy = nan_strategy
        super().__init__(**kwargs)

    def _known(self, value: Any, weight: Any = 1.0) -> tuple[Any, Any]:
        """Return values and weights of one shape, with what stands for NaN in its place."""
        values = _array(value).astype(np.float64)
        weights = np.broadcast_to(_array(weight).astype(np.float64), values.shape)
        bad = np.isnan(values) | np.isnan(weights)
        if bad.any() and self.nan_strategy != "disable":
            if self.nan_strategy == "error":
                msg = f"{type(self).__name__}: a value is NaN"
                raise RuntimeError(msg)
            if self.nan_strategy == "warn":
                warnings.warn(f"{type(self).__name__} leaves NaN out", PortWarning, stacklevel=3)
            filled = isinstance(self.nan_strategy, float)
            values = np.where(bad, self.nan_strategy if filled else 0.0, values)
            weights = np.where(bad, 1.0 if filled else 0.0, weights)
        elif self.nan_strategy == "disable":
            weights = np.ones_like(values)  # torchmetrics forgets the weights there
        return values, weights


class MeanMetric(_OfValues):
    """The mean of the values that it is given, as ``torchmetrics.MeanMetric``.

    Args:
        nan_strategy: what values of NaN do: ``"warn"`` leaves them out and says so, ``"ignore"``
            leaves them out, ``"error"`` raises, ``"disable"`` counts them; or a number in their
            place.
        **kwargs: settings of torchmetrics' Metric that change nothing in one process.
    """

    def reset(self) -> None:
        """Forget what was seen."""
        self._counts = np.zeros(2)

    def update(self, value: Any, weight: Any = 1.0) -> None:
        """Keep values, of any shape, with weights that broadcast to it."""
        values, weights = self._known(value, weight)
        self._counts = self._counts + np.asarray([(values * weights).sum(), weights.sum()])

    def compute(self) -> Tensor:
        """Return the mean: a float32 scalar, NaN where nothing was given."""
        total, weight = self._counts
        return Tensor(total / weight if weight else np.nan, ms.float32)


class SumMetric(_OfValues):
    """The sum of the values that it is given, as ``torchmetrics.SumMetric``.

    Args:
        nan_strategy: as ``MeanMetric`` takes it.
        **kwargs: settings of torchmetrics' Metric that change nothing in one process.
    """

    def reset(self) -> None:
        """Forget what was seen."""
        self._counts = np.zeros(1)

    def update(self, value: Any) -> None:
        """Keep values, of any shape."""
        self._counts = self._counts + self._known(value)[0].sum()

    def compute(self) -> Tensor:
        """Return the sum: a float32 scalar."""
        return Tensor(self._counts[0], ms.float32)


def _array(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return np.asarray(value)
    return (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy()


def _share(of: Any, whole: Any) -> Any:
    """Return a quotient, 0 where nothing was counted."""
    whole = np.asarray(whole, np.float64)
    return np.divide(of, whole, out=np.zeros(np.broadcast(of, whole).shape), where=whole != 0)
