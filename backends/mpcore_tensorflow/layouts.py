"""Keras weight layouts and the neutral ones, which are torch's."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from mpcore.errors import ExperimentError
from mpcore_tensorflow.layers import buffers, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mpcore_tensorflow.layers import Entry

    Array = npt.NDArray[np.float32]

__all__ = ["Layout", "Part", "Weights", "list_weights"]

_NORM_NAMES = {
    "gamma": "weight",
    "scale": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# Keras has i, f, c, o and z, r, h; torch i, f, g, o and r, z, n.
_GATES: dict[Any, tuple[int, ...]] = {
    keras.layers.LSTMCell: (0, 1, 2, 3),
    keras.layers.GRUCell: (1, 0, 2),
    keras.layers.SimpleRNNCell: (0,),
}
_PLAIN_NAMES = {"embeddings": "weight", "kernel": "weight", "alpha": "weight"}


@dataclass(frozen=True)
class Layout:
    """How a Keras array becomes a neutral one: split its axes, permute them, join some.

    Attributes:
        own: Keras's shape.
        split: a shape with the same elements in the same order.
        axes: the permutation of ``split``.
        neutral: the shape after it, with the same elements in the same order.
        order: places of the slices along the first axis, after the permutation; empty if kept.
        row: the row of Keras's array that this is, where the array holds several; else None.
    """

    own: tuple[int, ...]
    split: tuple[int, ...]
    axes: tuple[int, ...]
    neutral: tuple[int, ...]
    order: tuple[int, ...] = ()
    row: int | None = None

    @classmethod
    def permuted(cls, own: tuple[int, ...], axes: tuple[int, ...]) -> Layout:
        """Return a permutation alone."""
        return cls(own, own, axes, tuple(own[axis] for axis in axes))

    @property
    def changes(self) -> tuple[str, ...]:
        """What ``to_neutral`` does, in words."""
        words = {
            "one row of two": self.row is not None,
            "gates reordered": self.order != tuple(range(len(self.order))),
            "transposed": tuple(a for a in self.axes if self.split[a] > 1)
            != tuple(a for a in range(len(self.axes)) if self.split[a] > 1),
            "pixels of the flattened image reordered": len(self.split) > len(self.own)
            and not self.order
            and len(self.own) == len(self.neutral),
            "reshaped": self.own != self.neutral and len(self.own) != len(self.neutral),
        }
        return tuple(word for word, holds in words.items() if holds)

    def to_neutral(self, value: Array, *, view: bool = False) -> Array:
        """Return a float32 copy in the neutral layout; ``view``: no copy where none is needed."""
        value = np.asarray(value, np.float32)
        row = value if self.row is None else value[self.row]
        moved = row.reshape(self.split).transpose(self.axes)
        if self.order:
            moved = moved[list(self.order)]
        found = moved.reshape(self.neutral)
        return found if view else np.ascontiguousarray(found)

    def to_own(self, value: Array) -> Array:
        """Return a float32 array in Keras's layout; rows that are not this one are -0.0."""
        moved = np.asarray(value, np.float32).reshape([self.split[axis] for axis in self.axes])
        if self.order:
            moved = moved[np.argsort(self.order)]
        back = moved.transpose(np.argsort(self.axes))
        if self.row is None:
            return np.ascontiguousarray(back.reshape(self.own))
        whole = np.full(self.own, -0.0, np.float32)  # nothing changes what it is added to
        whole[self.row] = back.reshape(self.own[1:])
        return whole


class Part(NamedTuple):
    """One Keras variable in a neutral array.

    Attributes:
        variable: the variable; in two neutral arrays where torch has two for it.
        layout: how it becomes the neutral array.
        twin: whether another part is all of the variable, and torch adds the two: their values
            are summed, their gradients are the same.
    """

    variable: Any
    layout: Layout
    twin: bool = False


class Weights(NamedTuple):
    """The weights of one layer: each neutral array is its parts, joined along the first axis."""

    path: str
    category: str
    parts: dict[str, list[Part]]


def list_weights(
    model: Any, images: Mapping[int, tuple[int, ...]], *, statistics: bool
) -> list[Weights]:
    """Return the weights of every layer that has some, in the order of definition.

    Args:
        model: a built model.
        images: by ``id`` of a layer whose input is a flattened image, that image's shape,
            channels last: torch flattens channels first, so rows change places.
        statistics: whether to list buffers such as moving averages too.

    Raises:
        ExperimentError: the layout of a layer has no neutral form yet.
    """
    found = []
    for listed in walk(model):
        entry = listed.as_laid_out()
        left_out = set() if statistics else {id(v) for v in buffers(entry.layer)}
        own = {name: v for name, v in entry.variables.items() if id(v) not in left_out}
        if own and type(entry.layer).__name__.startswith("Separable"):
            found += _separable(entry, own)
        elif own:
            parts = _parts(entry, own, images.get(id(entry.layer)))
            found.append(Weights(entry.path, entry.category, parts))
    return found


def _parts(
    entry: Entry, own: dict[str, Any], image: tuple[int, ...] | None
) -> dict[str, list[Part]]:
    if entry.category == "attention":
        return _attention(entry, own)
    if entry.category == "recurrent":
        return _recurrent(entry, own)
    names = _NORM_NAMES if entry.category == "norm" else _PLAIN_NAMES
    return {
        names.get(name, name): [Part(v, _layout(entry, name, tuple(v.shape), image))]
        for name, v in own.items()
    }


def _layout(
    entry: Entry, name: str, shape: tuple[int, ...], image: tuple[int, ...] | None
) -> Layout:
    rank = len(shape)
    if name == "alpha":  # axes that PReLU shares have one element; torch shares all but channels
        squeezed = tuple(size for size in shape if size > 1) or (1,)
        return Layout(shape, shape, tuple(range(rank)), squeezed)
    if entry.category == "norm" and image and shape == (prod(image),):
        return Layout(shape, image, _channels_first(image), shape)
    if name != "kernel" or entry.category not in ("linear", "conv", "conv_transpose"):
        return Layout.permuted(shape, tuple(range(rank)))
    if entry.category == "linear":
        return _linear(entry, shape, image)
    if type(entry.layer).__name__.startswith("Depthwise"):
        return _depthwise(shape)
    return _dense_conv(shape)


def _depthwise(shape: tuple[int, ...]) -> Layout:
    # (*kernel, in, multiplier): torch has in groups, whose outputs follow one another.
    rank = len(shape)
    neutral = (shape[-2] * shape[-1], 1, *shape[:-2])
    return Layout(shape, shape, (rank - 2, rank - 1, *range(rank - 2)), neutral)


def _dense_conv(shape: tuple[int, ...]) -> Layout:
    # (*kernel, in, out), and transposed (*kernel, out, in): torch has (last, last but one, ...).
    rank = len(shape)
    return Layout.permuted(shape, (rank - 1, rank - 2, *range(rank - 2)))


def _separable(entry: Entry, own: dict[str, Any]) -> list[Weights]:
    """Return the two convolutions that torch has for it."""
    depth, point = own["depthwise_kernel"], own["pointwise_kernel"]
    kernels = {
        "depthwise": Part(depth, _depthwise(tuple(depth.shape))),
        "pointwise": Part(point, _dense_conv(tuple(point.shape))),
    }
    found = [
        Weights(f"{entry.path}.{name}", entry.category, {"weight": [part]})
        for name, part in kernels.items()
    ]
    if "bias" in own:
        shape = tuple(own["bias"].shape)
        found[1].parts["bias"] = [Part(own["bias"], Layout.permuted(shape, (0,)))]
    return found


def _linear(entry: Entry, shape: tuple[int, ...], image: tuple[int, ...] | None) -> Layout:
    if len(shape) != 2:
        msg = (
            f"layer {entry.path!r} cannot be compared: its kernel must have two axes to have a "
            f"neutral layout, got shape {shape}"
        )
        raise ExperimentError(msg)
    if image and prod(image) == shape[0]:
        split = (*image, shape[1])
        return Layout(shape, split, (len(image), *_channels_first(image)), shape[::-1])
    return Layout.permuted(shape, (1, 0))


def _channels_first(image: tuple[int, ...]) -> tuple[int, ...]:
    return (len(image) - 1, *range(len(image) - 1))


def _attention(entry: Entry, own: dict[str, Any]) -> dict[str, list[Part]]:
    """Return torch.nn.MultiheadAttention's arrays: one projection in of three, one out."""
    parts: dict[str, list[Part]] = {}
    for kind, name in (("kernel", "in_proj_weight"), ("bias", "in_proj_bias")):
        inward = [own[f"{p}.{kind}"] for p in ("query", "key", "value") if f"{p}.{kind}" in own]
        pieces = [Part(v, _projection(tuple(v.shape), kind)) for v in inward]
        if len({piece.layout.neutral[1:] for piece in pieces}) > 1:  # torch with kdim or vdim
            parts |= {f"{p}_proj_weight": [piece] for p, piece in zip("qkv", pieces, strict=True)}
        elif pieces:
            parts[name] = pieces
    out = {"kernel": "out_proj.weight", "bias": "out_proj.bias"}
    for kind, name in out.items():
        variable = own.get(f"attention_output.{kind}")
        if variable is not None:
            shape = tuple(variable.shape)
            joined = (prod(shape[:-1]), shape[-1]) if kind == "kernel" else shape
            axes = (1, 0) if kind == "kernel" else (0,)
            neutral = tuple(joined[axis] for axis in axes)
            parts[name] = [Part(variable, Layout(shape, joined, axes, neutral))]
    if sum(map(len, parts.values())) != len(own):
        msg = (
            f"layer {entry.path!r} ({type(entry.layer).__name__}) cannot be compared: only "
            "MultiHeadAttention has a neutral layout"
        )
        raise ExperimentError(msg)
    return parts


def _recurrent(entry: Entry, own: dict[str, Any]) -> dict[str, list[Part]]:
    """Return the arrays of torch's recurrent layer or cell."""
    layer = entry.layer
    if isinstance(layer, keras.layers.Bidirectional):
        ways = {"_l0": layer.forward_layer, "_l0_reverse": layer.backward_layer}
        cells = {behind: getattr(one, "cell", None) for behind, one in ways.items()}
    elif isinstance(layer, keras.layers.RNN):
        cells = {"_l0": layer.cell}
    else:
        cells = {"": layer}
    if not all(type(cell) in _GATES for cell in cells.values()):
        msg = (
            f"layer {entry.path!r} ({type(layer).__name__}) cannot be compared yet: its "
            "weights have no neutral layout"
        )
        raise ExperimentError(msg)
    parts: dict[str, list[Part]] = {}
    for behind, cell in cells.items():
        parts |= _gated(entry.path, cell, behind)
    if {id(part.variable) for (part,) in parts.values()} != {id(v) for v in own.values()}:
        msg = f"layer {entry.path!r} cannot be compared: it has weights that torch's has not"
        raise ExperimentError(msg)
    return parts


def _gated(path: str, cell: Any, behind: str) -> dict[str, list[Part]]:
    """Return torch's arrays of one direction: gates one below the other, two biases."""
    order = _GATES[type(cell)]
    two = getattr(cell, "reset_after", False)  # a GRU that adds its biases in torch's places
    if not two and isinstance(cell, keras.layers.GRUCell):
        msg = f"layer {path!r} cannot be compared: torch's GRU is one with reset_after=True"
        raise ExperimentError(msg)
    gates = len(order)

    kernels = {"weight_ih": cell.kernel, "weight_hh": cell.recurrent_kernel}
    parts: dict[str, list[Part]] = {}
    for name, kernel in kernels.items():
        rows, columns = map(int, kernel.shape)
        split, neutral = (rows, gates, cell.units), (columns, rows)
        layout = Layout((rows, columns), split, (1, 2, 0), neutral, order)
        parts[name + behind] = [Part(kernel, layout)]
    for row, name in enumerate(("bias_ih", "bias_hh") if cell.use_bias else ()):
        shape, size = tuple(cell.bias.shape), gates * cell.units
        place = row if two else None
        layout = Layout(shape, (gates, cell.units), (0, 1), (size,), order, place)
        parts[name + behind] = [Part(cell.bias, layout, twin=not two and row == 1)]
    return parts


def _projection(shape: tuple[int, ...], kind: str) -> Layout:
    if kind == "bias":  # (heads, size)
        return Layout(shape, shape, tuple(range(len(shape))), (prod(shape),))
    # (features, heads, size) to (heads * size, features)
    return Layout(shape, (shape[0], prod(shape[1:])), (1, 0), (prod(shape[1:]), shape[0]))
