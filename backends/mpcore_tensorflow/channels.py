"""Which tensors of a Keras model torch would hold channels first, and how to turn them.

A mark on a tensor says that it is an image, or one flattened. What convolutions, pooling and
batch normalisation hand on is marked; ops and layers that keep the places of values pass the mark
on; products over the last axis lose it, as torch has the features last there too.

Tried with TensorFlow 2.21 and Keras 3.15.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from mpcore.tools.inspection.trace import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["after_layer", "after_op", "before_layer", "mark_image", "turn_of", "turned"]

_MARK = "_mpcore_turn"
_IMAGE = (-1,)
"""Stands for "channels last"; a flattened image has its shape without the batch instead."""

_MAKES = words(
    "Conv2D Conv3D DepthwiseConv2dNative Conv2DBackpropInput Conv3DBackpropInputV2 MaxPool "
    "MaxPool3D AvgPool AvgPool3D FusedBatchNormV3"
)
_LOSES = words(
    "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Transpose Pack Unpack Gather GatherV2 "
    "GatherNd Shape"
)
_FEATURES_LAST = ("linear", "attention", "recurrent", "embedding", "loss")
_FORMATS = ("NHWC", "NDHWC", b"NHWC", b"NDHWC")


def mark_image(tensor: Any) -> None:
    """Mark a tensor of a batch that is channels first elsewhere: three axes to five."""
    if tensor.shape.rank in (3, 4, 5):
        setattr(tensor, _MARK, _IMAGE)


def turn_of(tensor: Any) -> tuple[int, ...]:
    """Return the mark of a tensor: ``()`` if it lies as torch's does."""
    found: tuple[int, ...] = getattr(tensor, _MARK, ())
    return found


def turned(values: npt.NDArray[Any], turn: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return values with channels first.

    Args:
        values: as TensorFlow holds them.
        turn: what ``turn_of`` returned for them.
    """
    if turn == _IMAGE:
        return np.moveaxis(values, -1, 1)
    if turn:
        image = np.moveaxis(values.reshape(-1, *turn), -1, 1)
        return image.reshape(values.shape)
    return values


def after_op(kind: str, attrs: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Mark what an op returned."""
    if kind in _MAKES:
        if any(value in _FORMATS for value in (attrs or ())[1::2]):
            _put(outputs[:1], _IMAGE)
        return
    if kind in _LOSES:
        if kind == "Transpose" and not turn_of(inputs[0]):
            _turned_by_hand(inputs, outputs)
        return
    marked = next((x for x in inputs if turn_of(x)), None)
    if marked is None:
        return
    turn, rank = turn_of(marked), marked.shape.rank
    for output in outputs:
        if kind == "Reshape" and turn == _IMAGE and output.shape.rank == 2:
            if output.shape[0] == marked.shape[0]:
                setattr(output, _MARK, tuple(marked.shape[1:]))
        elif kind == "Reshape" or turn != _IMAGE:
            if output.shape == marked.shape:
                setattr(output, _MARK, turn)
        elif output.shape.rank == rank:
            setattr(output, _MARK, turn)


def _turned_by_hand(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Mark what a transposition makes channels last."""
    rank = inputs[0].shape.rank
    if rank in (4, 5) and list(inputs[1].numpy()) == [0, *range(2, rank), 1]:
        _put(outputs, _IMAGE)


def _put(tensors: Sequence[Any], turn: tuple[int, ...]) -> None:
    for tensor in tensors:
        if tensor.shape.rank in (3, 4, 5):
            setattr(tensor, _MARK, turn)


def before_layer(layer: Any, category: str, tensors: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the turn of each tensor that comes into a layer."""
    return [_before(layer, category, x) for x in tensors]


def after_layer(layer: Any, category: str, tensors: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the turn of each tensor that a layer hands on, marked accordingly."""
    for tensor in tensors:
        if _is_channels_last(layer, tensor.shape.rank):
            setattr(tensor, _MARK, _IMAGE)
        elif category in _FEATURES_LAST or (_is_last(layer) and tensor.shape.rank > 2):
            setattr(tensor, _MARK, ())
    return [turn_of(x) for x in tensors]


def _before(layer: Any, category: str, tensor: Any) -> tuple[int, ...]:
    rank = tensor.shape.rank
    if _is_channels_last(layer, rank):
        return _IMAGE
    if (category in _FEATURES_LAST or _is_last(layer)) and rank > 2:
        return ()
    return turn_of(tensor)


def _is_last(layer: Any) -> bool:
    """Return whether ``layer`` normalises the last axis, where torch has the features too."""
    kinds = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
    return isinstance(layer, kinds)


def _is_channels_last(layer: Any, rank: int) -> bool:
    """Return whether what the layer takes and makes of that rank is images, channels last."""
    if rank not in (3, 4, 5) or isinstance(layer, keras.layers.Flatten):
        return False
    kinds = (keras.layers.BatchNormalization, keras.layers.GroupNormalization)
    if not isinstance(layer, kinds):
        return getattr(layer, "data_format", None) == "channels_last"
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    return axes[0] in (-1, rank - 1)
