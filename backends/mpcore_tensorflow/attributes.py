"""What a Keras layer was set to, in neutral words; see ``mpcore.tools.inspection.LayerCall``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from keras import layers

from mpcore.tools.inspection import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import keras
    import tensorflow as tf

__all__ = ["attributes"]

_CONVS = ("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D")
_SEPARABLE = ("SeparableConv1D", "SeparableConv2D")
_TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
_POOLS = tuple(f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3))
_GLOBAL = tuple(f"Global{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3))
_DROPOUTS = ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D")
_NOISY = ("GaussianDropout", "AlphaDropout")


def attributes(layer: keras.Layer, inputs: Sequence[Any], *, training: bool) -> dict[str, Any]:
    """Return the settings that change what ``layer`` computes.

    Args:
        layer: a Keras layer.
        inputs: what comes in; "same" pads according to its size.
        training: whether it is called to train.
    """
    found: dict[str, Any] = {"training": training}
    first = inputs[0] if inputs else None
    for names, read in _READERS:
        if isinstance(layer, tuple(filter(None, (getattr(layers, n, None) for n in names)))):
            found |= read(layer, first)
    found |= _function(getattr(layer, "activation", None))
    return {name: value for name, value in found.items() if value is not None}


def _function(activation: Any) -> dict[str, Any]:
    """Return what is known of an activation function."""
    more: dict[str, Any] = {}
    if isinstance(activation, functools.partial):
        activation, more = activation.func, activation.keywords
    name = getattr(activation, "__name__", "")
    if activation is None or name == "linear":
        return {}
    ours = str(getattr(activation, "__module__", "")).startswith("keras.")
    if ours and name == "gelu":
        return {"activation": name, "approximate": "tanh" if more.get("approximate") else "none"}
    if ours and name == "leaky_relu":
        return {"activation": name, "slope": more.get("negative_slope", 0.2)}
    return {"activation": name}


def _share(momentum: float) -> float:
    """Return the share of the new batch: Keras gives that of the old ones."""
    return round(1.0 - momentum, 12)


def _batch_norm(layer: keras.Layer, _: object) -> dict[str, Any]:
    return {
        "eps": layer.epsilon,
        "momentum": _share(layer.momentum),
        "statistics": True,
        "affine": _affine(layer),
    }


def _affine(layer: keras.Layer) -> bool | str:
    scale, center = getattr(layer, "scale", True), getattr(layer, "center", True)
    if bool(scale) == bool(center):
        return bool(scale)
    return "scale" if scale else "center"


def _other_norm(layer: keras.Layer, _: object) -> dict[str, Any]:
    axis = getattr(layer, "axis", -1)
    found: dict[str, Any] = {"eps": getattr(layer, "epsilon", None), "affine": _affine(layer)}
    if isinstance(layer, layers.GroupNormalization):
        return {**found, "groups": layer.groups}
    return {**found, "axes": len(axis) if isinstance(axis, list | tuple) else 1}


def _conv(layer: keras.Layer, first: tf.Tensor | None) -> dict[str, Any]:
    groups = getattr(layer, "groups", 1)
    if "Depthwise" in type(layer).__name__ and layer.built:
        axis = -1 if layer.data_format == "channels_last" else 1
        groups = None if first is None else int(first.shape[axis])
    return {
        "kernel": sizes.of_axes(layer.kernel_size),
        "stride": sizes.of_axes(layer.strides),
        "padding": _padding(layer, first, layer.kernel_size, layer.dilation_rate),
        "dilation": sizes.of_axes(layer.dilation_rate),
        "groups": groups,
        "padding_mode": "zeros",
        "bias": layer.use_bias,
    }


def _transposed(layer: keras.Layer, first: tf.Tensor | None) -> dict[str, Any]:
    found = _conv(layer, None)
    if layer.padding == "same":
        found["padding"] = sizes.same_padding_transposed(layer.kernel_size, layer.strides)
    return {**found, "groups": 1}


def _pool(layer: keras.Layer, first: tf.Tensor | None) -> dict[str, Any]:
    ones = (1,) * len(layer.pool_size)
    padding = _padding(layer, first, layer.pool_size, ones)
    average = "Average" in type(layer).__name__
    return {
        "kernel": sizes.of_axes(layer.pool_size),
        "stride": sizes.of_axes(layer.strides),
        "padding": padding,
        "count_include_pad": False if average and padding else None,
        "ceil_mode": False,
    }


def _padding(
    layer: keras.Layer, first: tf.Tensor | None, kernel: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Return the zeros that are added on each side; "same" where the size is not known."""
    if layer.padding == "valid":
        return 0
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    if layer.padding == "causal":
        return sizes.of_sides([(size, 0) for size in reach])
    if first is None or first.shape.rank != len(reach) + 2:
        return "same"
    start = 1 if layer.data_format == "channels_last" else 2
    return sizes.same_padding(first.shape[start:][: len(reach)], layer.strides, reach)


def _relu(layer: keras.Layer, _: object) -> dict[str, Any]:
    return {
        "slope": float(layer.negative_slope) or None,
        "maximum": layer.max_value,
        "threshold": float(layer.threshold) or None,
    }


def _attention(layer: keras.Layer, _: object) -> dict[str, Any]:
    return {
        "heads": getattr(layer, "num_heads", None),
        "rate": getattr(layer, "_dropout", getattr(layer, "dropout", None)),
        "batch_first": True,
    }


def _recurrent(layer: keras.Layer, _: object) -> dict[str, Any]:
    bidirectional = isinstance(layer, layers.Bidirectional)
    inner = layer.forward_layer if bidirectional else layer
    cell = getattr(inner, "cell", inner)
    return {
        "hidden": getattr(cell, "units", None),
        "layers": 1,
        "bidirectional": bidirectional,
        "batch_first": True,
        "rate": float(getattr(cell, "dropout", 0.0)),
        "bias": getattr(cell, "use_bias", None),
    }


_READERS: tuple[tuple[tuple[str, ...], Callable[[Any, Any], dict[str, Any]]], ...] = (
    (("BatchNormalization",), _batch_norm),
    (
        ("LayerNormalization", "GroupNormalization", "RMSNormalization", "UnitNormalization"),
        _other_norm,
    ),
    ((*_CONVS, *_SEPARABLE), _conv),
    (_TRANSPOSED, _transposed),
    (_POOLS, _pool),
    (_GLOBAL, lambda layer, first: {"output_size": 1}),
    ((*_DROPOUTS, *_NOISY), lambda layer, first: {"rate": float(layer.rate)}),
    (("Dense", "EinsumDense"), lambda layer, first: {"bias": layer.bias is not None}),
    (("LeakyReLU",), lambda layer, first: {"slope": float(layer.negative_slope)}),
    (("ELU",), lambda layer, first: {"alpha": float(layer.alpha)}),
    (("ReLU",), _relu),
    (("Softmax",), lambda layer, first: {"axis": layer.axis}),
    (("MultiHeadAttention", "GroupedQueryAttention", "GroupQueryAttention"), _attention),
    (("RNN", "Bidirectional"), _recurrent),
)
