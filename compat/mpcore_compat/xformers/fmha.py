"""Attention with the masks of ``xformers.ops.fmha``; the package's docstring names its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalMask",
    "BlockDiagonalMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "memory_efficient_attention",
]


class AttentionBias:
    """What decides which keys a query sees."""

    def seen(self, queries: int, keys: int, device: Any) -> Tensor:
        """Return which of ``keys`` each of ``queries`` sees, of shape (queries, keys)."""
        raise NotImplementedError

    def materialize(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Tensor:
        """Return what is added to scores of ``shape``: 0, or minus infinity."""
        seen = self.seen(shape[-2], shape[-1], device)
        bias = torch.zeros(seen.shape, dtype=dtype, device=device)
        return bias.masked_fill(~seen, float("-inf")).expand(tuple(shape))


class LowerTriangularMask(AttentionBias):
    """Each query sees the keys up to its own place, counted from the first ones."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what older forms took, and need none of it."""

    def seen(self, queries: int, keys: int, device: Any) -> Tensor:
        """Return the lower triangle."""
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


class LowerTriangularFromBottomRightMask(AttentionBias):
    """Each query sees the keys up to its own place, counted from the last ones."""

    def seen(self, queries: int, keys: int, device: Any) -> Tensor:
        """Return the lower triangle that ends in the last column."""
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class BlockDiagonalMask(AttentionBias):
    """Sequences that lie one behind the other, each seeing itself alone."""

    causal = False

    def __init__(self, q_seqlen: Sequence[int], kv_seqlen: Sequence[int]) -> None:
        """Keep the lengths."""
        self.q_seqlen = list(q_seqlen)
        self.kv_seqlen = list(kv_seqlen)
        self._batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int] | None = None,
        *,
        device: Any = None,  # xformers' signature
    ) -> BlockDiagonalMask:
        """Return the mask of sequences of these lengths."""
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[BlockDiagonalMask, Tensor]:
        """Return the mask of some batches (B, M, ...), and them one behind the other."""
        mask = cls.from_seqlens([t.shape[1] for t in tensors for _ in range(t.shape[0])])
        mask._batch_sizes = [t.shape[0] for t in tensors]
        flat = [t.reshape(1, -1, *t.shape[2:]) for t in tensors]
        return mask, torch.cat(flat, dim=1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Return the sequences of (1, all, ...), batches of equal ones together."""
        sizes = self._batch_sizes or [1] * len(self.q_seqlen)
        made, start, at = [], 0, 0
        for size in sizes:
            length = self.q_seqlen[at]
            part = tensor[:, start : start + size * length]
            made.append(part.reshape(size, length, *tensor.shape[2:]))
            start, at = start + size * length, at + size
        return made

    def make_causal(self) -> BlockDiagonalCausalMask:
        """Return the mask that keeps each query from the keys behind it, too."""
        made = BlockDiagonalCausalMask(self.q_seqlen, self.kv_seqlen)
        made._batch_sizes = self._batch_sizes
        return made

    def seen(self, queries: int, keys: int, device: Any) -> Tensor:
        """Return the blocks."""
        blocks = [
            torch.ones(q, k, dtype=torch.bool, device=device)
            for q, k in zip(self.q_seqlen, self.kv_seqlen, strict=True)
        ]
        if self.causal:
            blocks = [block.tril() for block in blocks]
        made = torch.block_diag(*blocks).bool()
        if made.shape != (queries, keys):
            msg = f"`attn_bias` must be of {queries} queries and {keys} keys, got {made.shape}"
            raise ValueError(msg)
        return made


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Sequences that lie one behind the other, each query seeing its own up to its place."""

    causal = True


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,  # chooses a kernel
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return attention over (B, M, K), (B, M, H, K) or (B, M, G, H, K).

    Args:
        query: queries.
        key: keys; its M may be another one.
        value: values.
        attn_bias: added to the scores, of shape (B, H, M, M') or what broadcasts to it; or a mask.
        p: the part of the weights that is dropped.
        scale: what scores are multiplied by; 1 / sqrt(K) where it is left out.
        op: the kernel of xformers; without a meaning here.
        output_dtype: that of the result.
    """
    if query.dim() == 3:
        made = memory_efficient_attention(
            query[:, :, None], key[:, :, None], value[:, :, None], _headed(attn_bias), p, scale
        )[:, :, 0]
    elif query.dim() == 5:
        q, k, v = (one.flatten(2, 3) for one in (query, key, value))
        if isinstance(attn_bias, torch.Tensor) and attn_bias.dim() == 5:
            attn_bias = attn_bias.flatten(1, 2)
        made = memory_efficient_attention(q, k, v, attn_bias, p, scale)
        made = made.unflatten(2, query.shape[2:4])
    else:
        q, k, v = (one.transpose(1, 2) for one in (query, key, value))
        if isinstance(attn_bias, AttentionBias):
            attn_bias = attn_bias.seen(q.shape[-2], k.shape[-2], q.device)
        made = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_bias, dropout_p=p, scale=scale
        ).transpose(1, 2)
    return made if output_dtype is None else made.to(output_dtype)


def _headed(bias: Tensor | AttentionBias | None) -> Tensor | AttentionBias | None:
    """Return the bias of one head."""
    return bias[:, None] if isinstance(bias, torch.Tensor) and bias.dim() == 3 else bias
