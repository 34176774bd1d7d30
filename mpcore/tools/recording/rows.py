"""Summaries of many tensors of a step at once: what each costs alone is mostly Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.inspection.tensor_summary import summarize, summarize_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["Pending", "summarized"]


class Pending:
    """What was taken of a tensor, not yet summarized.

    Attributes:
        values: that its summary is made of, float32, of one axis.
        shape: of the tensor.
        dtype: that it is stored in.
        whole: checksum of all its values; 0 where ``values`` are all, or they are too many.
    """

    __slots__ = ("dtype", "shape", "values", "whole")

    def __init__(self, values: Any, shape: tuple[int, ...], dtype: str, whole: int = 0) -> None:
        """Hold values that nobody writes any more."""
        self.values, self.shape, self.dtype, self.whole = values, shape, dtype, whole


def summarized(pending: Sequence[Pending]) -> list[TensorSummary]:
    """Return the summary of each, the same bits as one by one."""
    by_size: dict[int, list[int]] = {}
    for number, one in enumerate(pending):
        by_size.setdefault(one.values.size, []).append(number)
    found: list[Any] = [None] * len(pending)
    for size, numbers in by_size.items():
        own = [pending[n] for n in numbers]
        rows = np.stack([one.values for one in own]) if size else np.empty((0, 0), np.float32)
        if not size or not np.isfinite(rows).all():
            made = [summarize(one.values, one.dtype) for one in own]
        else:
            made = summarize_rows(rows)
        for number, one, summary in zip(numbers, own, made, strict=True):
            # The summary is new: nobody else holds it, and replace() would be most of the cost.
            object.__setattr__(summary, "shape", one.shape)
            object.__setattr__(summary, "dtype", one.dtype)
            object.__setattr__(summary, "digest", summary.digest ^ one.whole)
            found[number] = summary
    return found
