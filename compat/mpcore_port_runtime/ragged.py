"""Sequences of several lengths, and runs of equal values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pad_sequence", "unique", "unique_consecutive"]


def pad_sequence(
    sequences: Sequence[Any],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Any:
    """Return torch.nn.utils.rnn.pad_sequence: (longest, batch, ...) of (length, ...) each."""
    if padding_side not in ("left", "right"):
        msg = f"`padding_side` must be 'left' or 'right', got {padding_side!r}"
        raise ValueError(msg)
    longest = max(one.shape[0] for one in sequences)
    filled = []
    for one in sequences:
        lacking = longest - one.shape[0]
        if lacking:
            shape = (lacking, *one.shape[1:])
            rest = ops.full(shape, padding_value, dtype=one.dtype)
            one = ops.cat((one, rest) if padding_side == "right" else (rest, one))
        filled.append(one)
    return ops.stack(filled, 0 if batch_first else 1)


def unique(
    input: Any,  # torch's name
    sorted: bool = True,  # torch's name
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return torch.unique, in order, without a gradient, as there; counted on the host."""
    del sorted
    found = np.unique(input.asnumpy(), False, True, True, dim)
    kept = found[0]
    inverse = found[1].reshape(tuple(input.shape) if dim is None else -1)
    wanted = ((True, kept), (return_inverse, inverse), (return_counts, found[2]))
    made = [Tensor(np.ascontiguousarray(values)) for asked, values in wanted if asked]
    return made[0] if len(made) == 1 else tuple(made)


def unique_consecutive(
    input: Any,  # torch's name
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Return torch.unique_consecutive, without a gradient, as there; counted on the host."""
    values = input.asnumpy()
    rows = values.reshape(-1) if dim is None else np.moveaxis(values, dim, 0)
    flat = rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, 1)
    first = np.ones(len(rows), bool)
    first[1:] = (flat[1:] != flat[:-1]).any(1)
    kept = rows[first]
    made = [Tensor(np.ascontiguousarray(kept if dim is None else np.moveaxis(kept, 0, dim)))]
    if return_inverse:
        places = np.cumsum(first) - 1
        made.append(Tensor(places.reshape(values.shape) if dim is None else places))
    if return_counts:
        starts = np.append(np.flatnonzero(first), len(rows))
        made.append(Tensor(np.diff(starts)))
    return made[0] if len(made) == 1 else tuple(made)
