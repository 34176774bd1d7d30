"""How far two tensors lie apart, and how far noise alone may move them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.numerics.dtypes import FORMATS
from mpcore.tools.inspection import Difference, TensorSummary, difference, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

__all__ = [
    "MARGIN",
    "Distance",
    "apart",
    "between",
    "is_float",
    "is_swapped",
    "same_shape",
    "scaled",
    "spacing",
    "worst",
]

MARGIN = 3.0  # the largest of a few moved passes underestimates what noise can do


@dataclass(frozen=True)
class Distance:
    """A difference beside the tolerance that noise explains; see ``inspection.Difference``.

    Attributes:
        found: the difference.
        tolerance: largest relative difference that is taken for noise, >= 0; inf: nothing is told.
        equal: whether all bits are equal.
    """

    found: Difference
    tolerance: float
    equal: bool = False

    @property
    def beyond(self) -> bool:
        """Whether noise does not explain it."""
        return not self.found.relative <= self.tolerance

    def allowing(self, tolerance: float) -> Distance:
        """Return the difference beside a tolerance of at least that."""
        return replace(self, tolerance=max(self.tolerance, tolerance))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON; numbers that are not finite as text."""
        names = ("relative", "cosine", "largest", "off", "ulp")
        values: dict[str, Any] = {name: getattr(self.found, name) for name in names}
        values["tolerance"] = self.tolerance
        plain = {n: float(v) if isfinite(v) else str(v) for n, v in values.items()}
        return {**plain, "beyond": self.beyond}


def is_float(found: TensorSummary) -> bool:
    """Return whether a tensor held floats."""
    return "float" in found.dtype


def spacing(*dtypes: str) -> float:
    """Return the widest spacing at 1.0 of formats; that of float32 where none is known."""
    known = [FORMATS[name].spacing for name in dtypes if name in FORMATS]
    return max(known, default=FORMATS["float32"].spacing)


def scaled(found: TensorSummary, factor: float) -> TensorSummary:
    """Return the summary of a tensor times ``factor``, a finite number."""
    if factor == 1.0:
        return found
    size, narrow = abs(factor), np.float32(factor)
    return replace(
        found,
        peak=found.peak * size,
        least=found.least * size,
        mean=found.mean * factor,
        norm=found.norm * size,
        digest=hash((found.digest, factor)),
        buckets=found.buckets * narrow,
        sample=found.sample * narrow,
        values=None if found.values is None else found.values * narrow,
    )


def between(
    reference: Sequence[TensorSummary | None],
    own: Sequence[TensorSummary | None],
    factors: Sequence[float],
) -> tuple[Difference, bool] | None:
    """Return the largest difference of two lists of tensors, and whether all bits are equal.

    Args:
        reference: tensors in order; None for what is not known.
        own: likewise; only as many as both have count.
        factors: that each side is multiplied by first: gradients are compared unscaled.

    Returns:
        None where there is nothing to compare.
    """
    found, equal = [], True
    for a, b in zip(reference, own, strict=False):
        if a is None or b is None or not (a.count and b.count):
            continue
        if a.shape != b.shape and same_shape(a, b):
            b = _like(b, a.shape)
        left, right = scaled(a, factors[0]), scaled(b, factors[1])
        swapped = is_swapped(a, b)
        found.append(_swapped(left, right) if swapped else difference(left, right))
        equal = equal and found[-1].relative == 0.0 and not swapped
    return (worst(found), equal) if found else None


def same_shape(a: TensorSummary, b: TensorSummary) -> bool:
    """Return whether two shapes are one, axes of one apart: a pooled image may keep those."""
    left, right = ([size for size in x.shape if size > 1] for x in (a, b))
    return left == right


def is_swapped(a: TensorSummary, b: TensorSummary) -> bool:
    """Return whether one holds examples before time and the other time before examples."""
    swapped = (*b.shape[1::-1], *b.shape[2:])
    return len(a.shape) > 2 and a.shape == swapped and a.shape != b.shape and is_float(a)


def _swapped(a: TensorSummary, b: TensorSummary) -> Difference:
    """Return the difference of two tensors of which one has its first two axes swapped.

    Of sketches only what knows no order is compared: the mean, the norm and the peak.
    """
    if a.values is not None and b.values is not None:
        return difference(a, summarize(b.values.swapaxes(0, 1), b.dtype, keep=True))
    if (a.infinite, a.undefined) != (b.infinite, b.undefined):
        return Difference(inf)
    norm = a.norm or 1e-30
    sizes = (
        abs(a.norm - b.norm) / norm,
        abs(a.mean - b.mean) * float(np.sqrt(a.count)) / norm,
        abs(a.peak - b.peak) / (a.peak or 1e-30),
    )
    return Difference(max(sizes))


def _like(found: TensorSummary, shape: tuple[int, ...]) -> TensorSummary:
    values = None if found.values is None else found.values.reshape(shape)
    return replace(found, shape=shape, values=values)


def worst(found: Iterable[Difference]) -> Difference:
    """Return the difference with the largest relative distance."""
    return max(found, key=lambda d: inf if isnan(d.relative) else d.relative)


def apart(
    reference: npt.NDArray[Any], own: npt.NDArray[Any], least: float = 0.0
) -> tuple[Difference, bool]:
    """Return the difference of two whole arrays, and whether all bits are equal.

    Args:
        reference: of any shape.
        own: of the same shape; another one is infinitely far.
        least: smallest norm that the distance is measured against: what is all rounding has no
            direction.
    """
    pair = summarize(reference, keep=True), summarize(own, keep=True)
    found = difference(*pair)
    if isfinite(found.relative) and pair[0].norm < least:
        found = replace(found, relative=found.relative * pair[0].norm / least, cosine=nan)
    elif pair[0].norm == 0.0 and found.relative == inf and least and pair[0].shape == pair[1].shape:
        found = replace(found, relative=pair[1].norm / least)
    return found, found.relative == 0.0
