"""Attention of several heads, as a function of its weights.

Source: ``multi_head_attention_forward`` of torch/nn/functional.py, torch 2.13.0.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import ops

__all__ = ["added_to_scores", "multi_head_attention_forward"]


def multi_head_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Any, Any]:
    """Return what is attended to, (length, N, width), and by what weights, or None.

    Raises:
        NotImplementedError: biases of keys, zero rows, given keys or a causal hint are asked for.
    """
    asked = (bias_k, bias_v, static_k, static_v)
    if add_zero_attn or is_causal or any(one is not None for one in asked):
        msg = (
            "`bias_k`, `bias_v`, `add_zero_attn`, `static_k`, `static_v` and `is_causal` are not "
            "ported: leave them out, and give the causal mask as `attn_mask`"
        )
        raise NotImplementedError(msg)
    if embed_dim_to_check != query.shape[-1]:
        msg = f"was expecting embedding dimension of {embed_dim_to_check}, got {query.shape[-1]}"
        raise AssertionError(msg)
    batched = query.ndim == 3
    if not batched:
        query, key, value = (one.expand_dims(1) for one in (query, key, value))
        mask = key_padding_mask
        key_padding_mask = None if mask is None else mask.expand_dims(0)
    if use_separate_proj_weight:
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        weights = ops.chunk(in_proj_weight, 3, 0)
    biases = (None,) * 3 if in_proj_bias is None else ops.chunk(in_proj_bias, 3, 0)
    given = zip((query, key, value), weights, biases, strict=True)
    heads = [_heads(ops.dense(one, weight, bias), num_heads) for one, weight, bias in given]
    shares = _shares(heads[0], heads[1], attn_mask, key_padding_mask)
    shares = ops.dropout(shares, dropout_p) if training and dropout_p else shares
    width = query.shape[-1]
    found = ops.matmul(shares, heads[2]).transpose(2, 0, 1, 3).reshape(*query.shape[:2], width)
    found = ops.dense(found, out_proj_weight, out_proj_bias)
    shown = shares.mean(1) if average_attn_weights else shares
    if not batched:
        found, shown = found[:, 0], shown[0]
    return found, shown if need_weights else None


def _heads(value: Any, heads: int) -> Any:
    """Return (N, heads, length, width of one) of (length, N, width)."""
    length, count, width = value.shape
    return value.reshape(length, count, heads, width // heads).transpose(1, 2, 0, 3)


def _shares(query: Any, key: Any, mask: Any, padding: Any) -> Any:
    scores = ops.matmul(query * query.shape[-1] ** -0.5, key.swapaxes(-2, -1))
    if mask is not None:
        added = added_to_scores(mask, scores.dtype)
        scores = scores + (added.reshape(scores.shape) if mask.ndim == 3 else added)
    if padding is not None:
        scores = scores + added_to_scores(padding, scores.dtype)[:, None, None, :]
    return ops.softmax(scores, -1)


def added_to_scores(mask: Any, dtype: Any) -> Any:
    """Return what is added to scores: of a mask of truths -inf where it is true."""
    if mask.dtype not in (ms.bool_, ms.uint8):
        return mask.astype(dtype)
    return ops.zeros(mask.shape, dtype).masked_fill(mask.astype(ms.bool_), float("-inf"))
