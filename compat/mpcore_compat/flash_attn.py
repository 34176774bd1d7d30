"""What training scripts take of flash_attn, by torch's own operations.

Attention is ``torch.nn.functional.scaled_dot_product_attention``, whose rounding is another one;
kernels of flash_attn were not run beside it. Sequences of several lengths are computed one by one:
its cost grows with their number. Any floating dtype is taken.

Source: flash_attn 2.6.3, ``flash_attn/flash_attn_interface.py`` and ``bert_padding.py``: causal
masks are counted from the last query and the last key (since 2.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_unpadded_func",
    "flash_attn_unpadded_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "index_first_axis",
    "pad_input",
]


def _seen(queries: int, keys: int, window: tuple[int, int], device: Any) -> Tensor:
    """Return which keys a query sees: so many to the left of its place and to the right of it."""
    row = torch.arange(queries, device=device)[:, None] + keys - queries
    column = torch.arange(keys, device=device)
    left, right = window
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if left >= 0:
        seen &= column >= row - left
    if right >= 0:
        seen &= column <= row + right
    return seen


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # flash_attn's signature
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,  # chooses a kernel
    return_attn_probs: bool = False,
) -> Tensor:
    """Return attention over (batch, length, heads, size); keys may have fewer heads.

    Queries that see no key give 0.

    Raises:
        NotImplementedError: ``softcap``, ``alibi_slopes`` or ``return_attn_probs`` is asked for.
    """
    for name, asked in (
        ("softcap", softcap),
        ("alibi_slopes", alibi_slopes is not None),
        ("return_attn_probs", return_attn_probs),
    ):
        if asked:
            msg = f"`{name}` must be left out: torch's attention has no such"
            raise NotImplementedError(msg)
    window = (window_size[0], 0) if causal else tuple(window_size)
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    mask = None
    if window != (-1, -1):
        mask = _seen(q.shape[-2], k.shape[-2], window, q.device)  # type: ignore[arg-type]
    made = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout_p,
        scale=softmax_scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if mask is not None and q.shape[-2] > k.shape[-2]:
        made = made.masked_fill(~mask.any(-1)[:, None], 0)
    return made.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **given: Any) -> Tensor:
    """Return attention of (batch, length, 3, heads, size)."""
    return flash_attn_func(*qkv.unbind(2), *args, **given)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **given: Any) -> Tensor:
    """Return attention of queries and of (batch, length, 2, heads, size)."""
    return flash_attn_func(q, *kv.unbind(2), *args, **given)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,  # chooses a kernel
    max_seqlen_k: int,
    *args: Any,
    **given: Any,
) -> Tensor:
    """Return attention of sequences that lie one behind the other, (all, heads, size).

    ``cu_seqlens_q`` and ``cu_seqlens_k`` hold where each begins, and the end.
    """
    starts, others = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    made = [
        flash_attn_func(
            q[None, starts[i] : starts[i + 1]],
            k[None, others[i] : others[i + 1]],
            v[None, others[i] : others[i + 1]],
            *args,
            **given,
        )[0]
        for i in range(len(starts) - 1)
    ]
    return torch.cat(made)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **given: Any
) -> Tensor:
    """Return attention of sequences that lie one behind the other, (all, 3, heads, size)."""
    ends = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(1), *ends, *args, **given)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *args: Any,
    **given: Any,
) -> Tensor:
    """Return attention of queries (all, heads, size) and of (all, 2, heads, size)."""
    ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return flash_attn_varlen_func(q, *kv.unbind(1), *ends, *args, **given)


flash_attn_unpadded_func = flash_attn_varlen_func
flash_attn_unpadded_qkvpacked_func = flash_attn_varlen_qkvpacked_func


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of ``x`` that ``indices`` name."""
    return x[indices]


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return rows at their places of (batch, seqlen, ...), 0 between."""
    made = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    made[indices] = hidden_states
    return made.view(batch, seqlen, *hidden_states.shape[1:])
