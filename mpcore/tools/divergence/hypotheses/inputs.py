"""Batches that are not the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.distance import is_float
from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.inspection import difference

if TYPE_CHECKING:
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import TensorSummary

__all__ = ["from_batch"]

_ROUNDED = 1e-6  # relative: data that went through another format on its way


def from_batch(reference: Evidence, own: Evidence) -> list[RootCause]:
    """Return how the batches differ; empty if they do not."""
    found = []
    pairs = list(zip(reference.inspection.batch, own.inspection.batch, strict=False))
    for number, (a, b) in enumerate(pairs):
        if a.shape != b.shape and sorted(a.shape) == sorted(b.shape):
            continue  # another layout of images
        if is_float(a) == is_float(b) and difference(a, b).relative <= _ROUNDED:
            continue
        found.append(_told(number, a, b))
    together = [cause for cause in found if cause.kind == "data order"]
    return [*together, *(cause for cause in found if cause.kind != "data order")]


def _told(number: int, a: TensorSummary, b: TensorSummary) -> RootCause:
    where = f"batch[{number}]"

    def cause(kind: str, sentence: str, fix: str, confidence: str = "sure") -> RootCause:
        return RootCause(kind, where, where, "input", (sentence,), fix, confidence)

    target = number > 0 and not (is_float(a) and is_float(b))
    if is_float(a) != is_float(b):
        kind = "label" if target else "other setting"
        sentence = f"{where} is {a.dtype} in the reference and {b.dtype} here"
        return cause(kind, sentence, f"pass {where} as {a.dtype}")
    if a.shape != b.shape:
        sentence = f"{where} has the shape {a.shape} in the reference and {b.shape} here"
        return cause("other setting", sentence, "pass the same batch")
    if _same_values(a, b):
        sentence = f"{where} holds the same values in another order{_rows(a, b)}"
        return cause("data order", sentence, "shuffle with the same seed, or not at all")
    shift = _shift(a, b)
    if target and shift is not None:
        sentence = f"every value of {where} is {shift:g} more than in the reference"
        return cause("label", sentence, f"take {shift:g} from {where}: classes count from 0")
    if target:
        off = float((a.sample != b.sample).mean())
        sentence = f"{off:.0%} of the sampled values of {where} differ"
        return cause("label", sentence, f"pass the same {where}", "likely")
    factor, rest, left = _line(a.sample, b.sample)
    if left < 1e-4:
        sentence = f"{where} is {factor:.4g} times the reference's plus {rest:.4g}"
        return cause("other setting", sentence, "prepare the inputs in the same way")
    sentence = f"{where} is another one: mean {a.mean:.4g} there, {b.mean:.4g} here"
    return cause("data order", sentence, "draw the same batches, with the same seed", "possible")


def _same_values(a: TensorSummary, b: TensorSummary) -> bool:
    if a.values is not None and b.values is not None:
        return bool(np.array_equal(np.sort(a.values.ravel()), np.sort(b.values.ravel())))
    numbers = ("peak", "least", "zeros")
    alike = all(getattr(a, name) == getattr(b, name) for name in numbers)
    return alike and abs(a.norm - b.norm) <= 1e-6 * a.norm


def _rows(a: TensorSummary, b: TensorSummary) -> str:
    """Return which example is where, in words; ``""`` where that cannot be told."""
    if a.values is None or b.values is None or a.values.ndim < 1:
        return ""
    left, right = (x.reshape(len(x), -1) for x in (a.values, b.values))
    order = [next((i for i, row in enumerate(left) if (row == other).all()), -1) for other in right]
    if -1 in order:
        return ""
    shown = ", ".join(map(str, order[:8]))
    return f": its examples are {shown}{' ...' if len(order) > 8 else ''} of the reference"


def _shift(a: TensorSummary, b: TensorSummary) -> float | None:
    left, right = (x.sample if x.values is None else x.values.ravel() for x in (a, b))
    apart = np.unique(right - left)
    return float(apart[0]) if len(apart) == 1 else None


def _line(a: Any, b: Any) -> tuple[float, float, float]:
    """Return (factor, shift, what is left, relative) of ``b`` as a line in ``a``."""
    if a.size < 3 or not np.ptp(a):
        return 1.0, 0.0, 1.0
    factor, shift = np.polyfit(a.astype(np.float64), b.astype(np.float64), 1)
    left = np.linalg.norm(factor * a + shift - b) / max(float(np.linalg.norm(b)), 1e-30)
    return float(factor), float(shift), float(left)
