"""Attention by the names of xformers and flash_attn, whose kernels are for CUDA.

Heads lie behind the length: (batch, length, heads, size). Source: xformers 0.0.28,
``xformers/ops/fmha/__init__.py`` and ``attn_bias.py``; flash_attn 2.6.3,
``flash_attn/flash_attn_interface.py``, whose causal mask is counted from the last query and key.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mpcore_port_runtime.functional import scaled_dot_product_attention

__all__ = [
    "LowerTriangularMask",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "memory_efficient_attention",
]


class LowerTriangularMask:
    """Each query sees the keys up to its own place, counted from the first ones."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what older forms took, and need none of it."""


def memory_efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
) -> Any:
    """Return attention over (B, M, K) or (B, M, H, K).

    Args:
        query: queries.
        key: keys; its M may be another one.
        value: values.
        attn_bias: a tensor that is added to the scores, or ``LowerTriangularMask()``.
        p: the part of the weights that is dropped.
        scale: what scores are multiplied by; 1 / sqrt(K) where it is left out.

    Raises:
        NotImplementedError: there are groups of heads, or ``attn_bias`` is another mask.
    """
    if query.ndim not in (3, 4):
        msg = f"`query` must have 3 or 4 axes, got {query.ndim}: groups of heads are not ported"
        raise NotImplementedError(msg)
    causal = isinstance(attn_bias, LowerTriangularMask)
    if not (causal or attn_bias is None or isinstance(attn_bias, Tensor)):
        msg = (
            f"`attn_bias` must be a tensor or LowerTriangularMask(), got {type(attn_bias).__name__}"
        )
        raise NotImplementedError(msg)
    bias = None if causal else attn_bias
    if query.ndim == 3:
        return scaled_dot_product_attention(query, key, value, bias, p, causal, scale)
    q, k, v = (one.swapaxes(1, 2) for one in (query, key, value))
    return scaled_dot_product_attention(q, k, v, bias, p, causal, scale).swapaxes(1, 2)


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Any:
    """Return attention over (batch, length, heads, size); keys may have fewer heads.

    Raises:
        NotImplementedError: a query sees no key at all.
    """
    left, right = (window_size[0], 0) if causal else window_size
    queries, keys = q.shape[1], k.shape[1]
    mask = None
    if (left, right) != (-1, -1):
        place = np.arange(keys) - np.arange(queries)[:, None] - (keys - queries)
        seen = (place >= -left) | (left < 0)
        seen &= (place <= right) | (right < 0)
        if not seen.any(-1).all():
            msg = f"{queries} queries see {keys} keys: some see none, which is not ported"
            raise NotImplementedError(msg)
        mask = Tensor(seen, ms.bool_)
    q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
    made = scaled_dot_product_attention(
        q, k, v, mask, dropout_p, False, softmax_scale, q.shape[1] != k.shape[1]
    )
    return made.swapaxes(1, 2)


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Any:
    """Return attention of (batch, length, 3, heads, size)."""
    q, k, v = (qkv[:, :, i] for i in range(3))
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size)


def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Any:
    """Return attention of queries and of (batch, length, 2, heads, size)."""
    return flash_attn_func(
        q, kv[:, :, 0], kv[:, :, 1], dropout_p, softmax_scale, causal, window_size
    )
