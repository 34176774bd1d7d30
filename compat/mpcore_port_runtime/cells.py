"""Recurrent cells that start from zeros where no state is given, and bags of embeddings."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer

__all__ = ["EmbeddingBag", "GRUCell", "LSTMCell", "RNNCell"]


class LSTMCell(nn.LSTMCell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.LSTMCell."""

    def construct(self, x: Any, hx: Any = None) -> Any:
        """Return (h, c) behind one step of ``x``, (batch, features) or (features,)."""
        batch = x if x.ndim == 2 else x.expand_dims(0)
        if hx is None:
            zeros = ops.zeros((batch.shape[0], self.hidden_size), dtype=x.dtype)
            states = (zeros, zeros)
        else:
            states = tuple(one if x.ndim == 2 else one.expand_dims(0) for one in hx)
        made = super().construct(batch, states)
        return made if x.ndim == 2 else tuple(one.squeeze(0) for one in made)


def _stepped(step: Any, size: int, x: Any, hx: Any) -> Any:
    """Return the state behind one step of a cell with one state, zeros where none is given."""
    batch = x if x.ndim == 2 else x.expand_dims(0)
    if hx is None:
        state = ops.zeros((batch.shape[0], size), dtype=x.dtype)
    else:
        state = hx if x.ndim == 2 else hx.expand_dims(0)
    made = step(batch, state)
    return made if x.ndim == 2 else made.squeeze(0)


class GRUCell(nn.GRUCell):  # type: ignore[misc]
    """torch.nn.GRUCell."""

    def construct(self, x: Any, hx: Any = None) -> Any:
        """Return the state behind one step of ``x``, (batch, features) or (features,)."""
        return _stepped(super().construct, self.hidden_size, x, hx)


class RNNCell(nn.RNNCell):  # type: ignore[misc]
    """torch.nn.RNNCell."""

    def construct(self, x: Any, hx: Any = None) -> Any:
        """Return the state behind one step of ``x``, (batch, features) or (features,)."""
        return _stepped(super().construct, self.hidden_size, x, hx)


class EmbeddingBag(nn.Cell):  # type: ignore[misc]
    """torch.nn.EmbeddingBag with dense gradients."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean", "max"):
            msg = f"`mode` must be 'sum', 'mean' or 'max', got {mode!r}"
            raise ValueError(msg)
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        within = padding_idx is None or padding_idx >= 0
        self.padding_idx = padding_idx if within else num_embeddings + padding_idx  # type: ignore[operator]
        rows = initializer(Normal(1.0), (num_embeddings, embedding_dim), ms.float32).init_data()
        if self.padding_idx is not None:
            kept = np.ones((num_embeddings, 1), np.float32)
            kept[self.padding_idx] = 0
            rows = rows * Tensor(kept)
        self.weight = ms.Parameter(rows)

    def construct(self, ids: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return (bags, features) of ``ids``: (bags, n), or (n,) with where each bag begins."""
        if per_sample_weights is not None and self.mode != "sum":
            msg = f"`per_sample_weights` must be with mode 'sum', got mode {self.mode!r}"
            raise NotImplementedError(msg)
        inside = None
        if ids.ndim == 1:
            if offsets is None:
                msg = "`offsets` must be given with one axis of `ids`"
                raise ValueError(msg)
            places, inside = self._bags(offsets, ids.shape[0])
            ids = ids[places]
            if per_sample_weights is not None:
                per_sample_weights = per_sample_weights[places]
        elif offsets is not None:
            msg = "`offsets` must be None with two axes of `ids`"
            raise ValueError(msg)
        if self.padding_idx is not None:
            real = ids != self.padding_idx
            inside = real if inside is None else ops.logical_and(inside, real)
        rows = ops.gather(self.weight, ids, 0)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.expand_dims(-1)
        return self._reduced(rows, inside)

    def _bags(self, offsets: Any, length: int) -> tuple[Any, Any]:
        """Return places of ids, (bags, longest), and which of them belong to the bag."""
        starts = offsets.asnumpy().astype(np.int64)
        ends = starts[1:] if self.include_last_offset else np.append(starts[1:], length)
        starts = starts[: len(ends)]
        sizes = ends - starts
        steps = np.arange(max(int(sizes.max(initial=0)), 1))
        inside = steps < sizes[:, None]
        return Tensor(np.where(inside, starts[:, None] + steps, 0)), Tensor(inside)

    def _reduced(self, rows: Any, inside: Any) -> Any:
        """Return (bags, features) of (bags, longest, features); empty bags are zeros."""
        if inside is None:
            return ops.max(rows, 1)[0] if self.mode == "max" else getattr(rows, self.mode)(1)
        held = inside.expand_dims(-1)
        if self.mode == "max":
            found = ops.max(ops.where(held, rows, ops.full_like(rows, -np.inf)), 1)[0]
            return ops.where(held.any(1), found, ops.zeros_like(found))
        total = ops.where(held, rows, ops.zeros_like(rows)).sum(1)
        if self.mode == "sum":
            return total
        return total / ops.maximum(held.astype(rows.dtype).sum(1), Tensor(1.0, rows.dtype))
