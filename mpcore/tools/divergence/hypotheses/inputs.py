"""Batches that are not the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.distance import is_float, spacing
from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.inspection import difference, summarize

if TYPE_CHECKING:
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import TensorSummary

__all__ = ["from_batch", "from_given"]

_ROUNDED = 1e-6  # relative: data that went through another format on its way
_CAST = 4.0  # roundings of the format in which the model is given its batch
_FEW = 0.05  # share of equal values that says that an example is the same
_RELATED = 0.3  # correlation of values of two preparations of one batch
_MOST = 0.6  # share of the values that a shift explains


def from_batch(reference: Evidence, own: Evidence) -> list[RootCause]:
    """Return how the batches differ; empty if they do not."""
    found = []
    pairs = list(zip(reference.inspection.batch, own.inspection.batch, strict=False))
    for number, (a, b) in enumerate(pairs):
        if a.shape != b.shape and sorted(a.shape) == sorted(b.shape):
            turned = _turned(a, b)
            if turned is None:
                continue  # another layout of images
            b = turned
        if is_float(a) == is_float(b) and difference(a, b).relative <= _ROUNDED:
            continue
        found.append(_told(number, a, b))
    together = [cause for cause in found if cause.kind == "data order"]
    return [*together, *(cause for cause in found if cause.kind != "data order")]


def from_given(reference: Evidence, own: Evidence) -> list[RootCause]:
    """Return how what the models are given differs, though the batches agree; empty if not.

    A loss may hand on a part of the batch, or prepare it in its own way. What is drawn anew in
    every pass is judged by other random numbers.
    """
    sides = [_given(side) for side in (reference, own)]
    whole = {x.shape for x in reference.inspection.batch}
    if len(sides[0]) != len(sides[1]) or not all(x.shape in whole for x in sides[0]):
        return []
    found = []
    for number, (a, b) in enumerate(zip(*sides, strict=True)):
        if a.shape[1:] != b.shape[1:] or is_float(a) != is_float(b):
            return []  # another layout, or another order of the inputs
        if a.shape != b.shape or difference(a, b).relative > _CAST * spacing(a.dtype, b.dtype):
            found.append(_told(number, a, b))
    more = "the batches agree: the function of the loss gives the model something else"
    return [cause.with_evidence(more) for cause in found]


def _given(side: Evidence) -> tuple[TensorSummary, ...]:
    """Return what the model is called with; empty where that is drawn, or there are more calls."""
    passes = [side.inspection, *((side.reseeded,) if side.reseeded is not None else ())]
    roots = [[c for c in one.calls if not c.path] for one in passes]
    if any(len(calls) != 1 for calls in roots):
        return ()
    digests = {tuple(x.digest for x in calls[0].inputs) for calls in roots}
    return roots[0][0].inputs if len(digests) == 1 else ()


def _turned(a: TensorSummary, b: TensorSummary) -> TensorSummary | None:
    """Return ``b`` in the layout of ``a``; None where that is not known."""
    if a.values is None or b.values is None or a.values.ndim < 3:
        return None
    ways = (np.moveaxis(b.values, -1, 1), np.moveaxis(b.values, 1, -1))
    fitting = [way for way in ways if way.shape == a.shape]
    found = [summarize(way, b.dtype, keep=True) for way in fitting]
    return min(found, key=lambda one: difference(a, one).relative, default=None)


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
    shift = _common_shift(a, b)
    if shift is not None:
        sentence = f"almost every value of {where} is {shift:g} more than in the reference"
        fix = f"number the values of {where} alike on both sides, such as from 0"
        return cause("other setting", sentence, fix, "likely")
    if _same_examples(a, b) or _independent(a, b):
        fix = "draw the same batches, with the same seed"
        return cause("data order", sentence, fix, "possible")
    sentence += "; what is there and what is here belong together"
    return cause("other setting", sentence, "prepare the inputs in the same way", "likely")


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


def _both(a: TensorSummary, b: TensorSummary) -> tuple[Any, Any]:
    whole = a.values is not None and b.values is not None
    found = (a.values, b.values) if whole else (a.sample, b.sample)
    return np.asarray(found[0], np.float64).ravel(), np.asarray(found[1], np.float64).ravel()


def _same_examples(a: TensorSummary, b: TensorSummary) -> bool:
    """Return whether some of the examples are the same, and others are not."""
    left, right = _both(a, b)
    there = (left != 0) | (right != 0)
    return bool(there.any()) and float((left == right)[there].mean()) > _FEW


def _independent(a: TensorSummary, b: TensorSummary) -> bool:
    """Return whether values in the same places, and which of them are zero, tell nothing.

    Of two draws the correlation is some 1 / sqrt(values); of one draw that was prepared in two
    ways it is not, nor are the zeros of a matrix of links elsewhere.
    """
    left, right = _both(a, b)
    limit = max(_RELATED, 3 / max(left.size, 1) ** 0.5)
    ranks = [np.unique(x, return_inverse=True)[1] for x in (left, right)]
    zeros = [x == 0 for x in (left, right)]
    return all(_correlation(*pair) < limit for pair in (ranks, zeros))


def _correlation(a: Any, b: Any) -> float:
    if not (np.ptp(a.astype(np.float64)) and np.ptp(b.astype(np.float64))):
        return 0.0
    return abs(float(np.corrcoef(a, b)[0, 1]))


def _common_shift(a: TensorSummary, b: TensorSummary) -> float | None:
    """Return the difference that most integers have: the others wrap around, or are cut off."""
    if is_float(a) or is_float(b):
        return None
    left, right = _both(a, b)
    shifts, counts = np.unique(right - left, return_counts=True)
    common = float(shifts[counts.argmax()])
    return common if common and float(counts.max()) > _MOST * left.size else None


def _shift(a: TensorSummary, b: TensorSummary) -> float | None:
    left, right = _both(a, b)
    apart = np.unique(right - left)
    return float(apart[0]) if len(apart) == 1 else None


def _line(a: Any, b: Any) -> tuple[float, float, float]:
    """Return (factor, shift, what is left, relative) of ``b`` as a line in ``a``."""
    if a.size < 3 or not np.ptp(a):
        return 1.0, 0.0, 1.0
    factor, shift = np.polyfit(a.astype(np.float64), b.astype(np.float64), 1)
    left = np.linalg.norm(factor * a + shift - b) / max(float(np.linalg.norm(b)), 1e-30)
    return float(factor), float(shift), float(left)
