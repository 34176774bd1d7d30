"""Layers in float64 numpy: what a setting would have made of the same input."""

from __future__ import annotations

from math import erf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["ACTIVATIONS", "convolve", "each", "normalise", "softmax", "spread"]

_MOST = 5e8  # products of a convolution that is tried; a float64 one takes a second for as many


def normalise(
    x: Array, category: str, eps: float, attributes: Mapping[str, Any], arrays: Mapping[str, Any]
) -> Array:
    """Return what a normalisation makes of ``x``.

    Args:
        x: shape (batch, channels, ...) for ``"batch"`` and ``"group"``, (..., features) for
            ``"layer"`` and ``"rms"``.
        category: one of those four words.
        eps: added to the variance.
        attributes: ``axes`` of ``"layer"``, ``groups`` of ``"group"``.
        arrays: ``weight`` and ``bias``, where there are any.
    """
    mean, variance = spread(x, category, attributes)
    y = (x if category == "rms" else x - mean) / np.sqrt(variance + eps)
    shape = (1, -1, *[1] * (x.ndim - 2)) if category in ("batch", "group") else None
    for name, combine in (("weight", np.multiply), ("bias", np.add)):
        value = arrays.get(name)
        if value is not None:
            wide = np.asarray(value, np.float64)
            y = combine(y, wide.reshape(shape) if shape else wide)
    return np.asarray(y)


def spread(x: Array, category: str, attributes: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return mean and biased variance of a normalisation, in shapes that fit ``x``."""
    if category == "group":
        groups = int(attributes.get("groups", 1))
        parts = x.reshape(x.shape[0], groups, -1)
        each = x.shape[1] // groups
        shape = (x.shape[0], x.shape[1], *[1] * (x.ndim - 2))
        found = [
            np.repeat(f(parts, axis=2), each, axis=1).reshape(shape) for f in (np.mean, np.var)
        ]
        return found[0], found[1]
    axes: tuple[int, ...] = tuple(range(-int(attributes.get("axes", 1)), 0))
    if category == "batch":
        axes = (0, *range(2, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    if category == "rms":
        return mean, np.square(x).mean(axis=axes, keepdims=True)
    return mean, x.var(axis=axes, keepdims=True)


def softmax(x: Array, axis: int) -> Array:
    """Return exp(x) over its sum along ``axis``."""
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2.0))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -700, 700))))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, x))


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "gelu": _gelu,
    "gelu (tanh)": _gelu_tanh,
    "gelu (sigmoid)": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "elu": _elu,
    # constants of Klambauer et al. 2017, arXiv:1706.02515
    "selu": lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid (0.2)": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "identity": lambda x: x,
}
"""By name, on any shape."""


def convolve(
    x: Array,
    weight: Array,
    bias: Array | None,
    padding: Sequence[tuple[int, int]],
    settings: Mapping[str, Any],
    mode: str = "constant",
) -> Array | None:
    """Return the cross-correlation of ``x`` with ``weight``; None where that takes too long.

    Args:
        x: shape (batch, channels, *sizes).
        weight: shape (out, channels / groups, *kernel).
        bias: shape (out,), or None.
        padding: (before, after) of each axis.
        settings: ``stride``, ``dilation``: a number or one for each axis; ``groups``.
        mode: of ``numpy.pad``.
    """
    axes = x.ndim - 2
    stride, dilation = (each(settings.get(n, 1), axes) for n in ("stride", "dilation"))
    groups = int(settings.get("groups", 1))
    padded = np.pad(x, [(0, 0), (0, 0), *padding], mode=mode)  # type: ignore[call-overload]  # a mode of numpy's
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if any(size < span for size, span in zip(padded.shape[2:], spans, strict=True)):
        return None
    if prod(weight.shape) * prod(padded.shape[2:]) * x.shape[0] > _MOST:
        return None
    windows: Any = np.lib.stride_tricks.sliding_window_view
    views = windows(padded, tuple(spans), axis=tuple(range(2, x.ndim)))
    places = (slice(None), slice(None), *(slice(None, None, s) for s in stride))
    inside = tuple(slice(None, None, d) for d in dilation)
    views = views[(*places, *inside)]
    letters = "ijk"[:axes], "uvw"[:axes]
    rule = f"bc{letters[0]}{letters[1]},oc{letters[1]}->bo{letters[0]}"
    step_in, step_out = weight.shape[1], weight.shape[0] // groups
    parts = [
        np.einsum(
            rule,
            views[:, g * step_in : (g + 1) * step_in],
            weight[g * step_out : (g + 1) * step_out],
            optimize=True,
        )
        for g in range(groups)
    ]
    y = np.concatenate(parts, axis=1)
    return np.asarray(y if bias is None else y + bias.reshape(1, -1, *[1] * axes))


def each(value: Any, axes: int) -> list[int]:
    """Return a size for each axis."""
    found = list(value) if isinstance(value, tuple | list) else [value]
    return [int(v) for v in (found if len(found) == axes else found * axes)]
