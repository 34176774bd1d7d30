"""A call of a model traced once: TensorFlow's graph of it, and which layer made each operation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.models.functional import Functional

from mpcore.errors import GraphError
from mpcore.graph.part import as_arguments
from mpcore_tensorflow.layers import walk
from mpcore_tensorflow.tap import RanOp, tapped

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "UNTRACEABLE",
    "Arguments",
    "Owner",
    "Traced",
    "arguments_of",
    "filled",
    "trace",
    "untraceable",
]


def arguments_of(model: keras.Model, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a model is called with; a Functional one takes its inputs as one structure."""
    if isinstance(model, Functional):
        count = len(model.inputs)
        if isinstance(example, (list, tuple)) and len(example) == count > 1:
            return (list(example),), {}
        struct = model._inputs_struct
        if isinstance(example, dict) and isinstance(struct, dict) and set(example) <= set(struct):
            return (example,), {}
    return as_arguments(example)


@dataclass(frozen=True)
class Owner:
    """The layer that made an operation."""

    path: str
    layer: Any


class Arguments:
    """What a model is called with: its tensors, and what is not one.

    Attributes:
        tensors: in the order of the structure, then the masks that some of them carry.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the arguments apart."""
        self._flat = keras.tree.flatten((args, kwargs))
        self._like = (args, kwargs)
        self._at = [i for i, x in enumerate(self._flat) if _is_array(x)]
        values = [tf.convert_to_tensor(self._flat[i]) for i in self._at]
        masks = [backend.get_keras_mask(self._flat[i]) for i in self._at]
        self._masked = [i for i, mask in enumerate(masks) if mask is not None]
        self.tensors = values + [masks[i] for i in self._masked]

    @property
    def key(self) -> Any:
        """What calls have in common that one graph can run."""
        plain = [_plain(x) for i, x in enumerate(self._flat) if i not in self._at]
        specs = [
            (x.dtype.name, tuple(x.shape) if x.shape.rank is not None else None)
            for x in self.tensors
        ]
        structure = keras.tree.map_structure(_is_array, self._like)
        return repr(structure), tuple(specs), tuple(self._masked), repr(plain)

    def like(self, tensors: list[Any]) -> Any:
        """Return (args, kwargs) with other tensors in the place of these."""
        flat, count = list(self._flat), len(self._at)
        for at, tensor in zip(self._at, tensors, strict=False):
            flat[at] = tensor
        for number, mask in zip(self._masked, tensors[count:], strict=True):
            backend.set_keras_mask(tensors[number], mask)
        return keras.tree.pack_sequence_as(self._like, flat)


@dataclass
class Traced:
    """One call, traced.

    Attributes:
        graph: TensorFlow's graph of it.
        inputs: its tensors for ``Arguments.tensors``.
        outputs: what it returned, flat, then masks and losses as ``masks`` and ``losses`` say.
        structure: what it returned.
        masks: which of the outputs carry a mask, by position.
        losses: layers that added a loss, in order.
        owners: by graph (its id) and name of an operation, who made it.
    """

    graph: Any
    inputs: list[Any]
    outputs: list[Any]
    structure: Any
    masks: list[int]
    losses: list[Any]
    owners: dict[tuple[int, str], Owner]


def trace(
    model: keras.Model,
    function: Callable[..., Any],
    arguments: Arguments,
    *,
    any_batch: bool = False,
) -> Traced:
    """Return one call of ``function``, the ``call`` of ``model``, as TensorFlow traces it.

    Raises:
        GraphError: it cannot be traced.
    """
    owners: dict[tuple[int, str], Owner] = {}
    stack = [Owner("", model)]
    paths = {id(entry.layer): str(entry.path) for entry in walk(model)}

    def around(layer: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        path = paths.get(id(layer))
        if path is None:  # inside of a layer that is listed as one
            path = ".".join(filter(None, (stack[-1].path, layer.name)))
        stack.append(Owner(path, layer))
        try:
            return run(*args, **kwargs)
        finally:
            stack.pop()

    def made(op: RanOp) -> None:
        if op.graph is not None:
            owners[id(op.graph), op.name] = stack[-1]

    found: dict[str, Any] = {}

    def run(*tensors: Any) -> list[Any]:
        args, kwargs = arguments.like(list(tensors))
        before = {id(layer): len(layer._losses) for layer in _parts(model)}
        with tapped(around, made, alone=True):
            result = function(*args, **kwargs)
        flat = keras.tree.flatten(result)
        tensors_out = [tf.convert_to_tensor(x) for x in flat if _is_array(x)]
        masks = [backend.get_keras_mask(x) for x in flat if _is_array(x)]
        losses = _new_losses(model, before)
        found["structure"], found["flat"] = result, flat
        found["masks"] = [i for i, mask in enumerate(masks) if mask is not None]
        found["losses"] = [layer for layer, _ in losses]
        masked = [masks[i] for i in found["masks"]]
        return [*tensors_out, *masked, *(tf.convert_to_tensor(loss) for _, loss in losses)]

    shapes = [[None, *x.shape[1:]] if any_batch and x.shape else x.shape for x in arguments.tensors]
    pairs = zip(shapes, arguments.tensors, strict=True)
    specs = [tf.TensorSpec(shape, x.dtype) for shape, x in pairs]
    try:
        with tf.init_scope():
            graph = tf.function(run, autograph=False).get_concrete_function(*specs).graph
    except UNTRACEABLE as exc:
        raise untraceable(model, exc) from exc
    structure = keras.tree.map_structure(lambda x: _HOLE if _is_array(x) else x, found["structure"])
    inputs = list(graph.inputs)[: len(specs)]
    outputs = list(graph.outputs)
    return Traced(graph, inputs, outputs, structure, found["masks"], found["losses"], owners)


UNTRACEABLE = (TypeError, ValueError, AttributeError, NotImplementedError, tf.errors.OpError)
"""What Keras and TensorFlow raise where Python asks a tensor that has no value yet."""


def untraceable(model: keras.Model, exc: Exception) -> GraphError:
    """Return what says that a model cannot be traced."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(exc).splitlines()]
    first = next((x for x in lines if x and not x.startswith("Exception encountered")), "")
    msg = (
        "Python that decides by the value of a tensor has no graph; use keras.ops.cond, or "
        "by='layer'"
    )
    return GraphError(f"{type(model).__name__} cannot be traced: {first[:200]}", msg)


class _Hole:
    """Where a tensor goes."""


_HOLE = _Hole()


def filled(traced: Traced, tensors: list[Any]) -> Any:
    """Return what the call returns, with these tensors; masks and losses are handed on."""
    count = len(tensors) - len(traced.masks) - len(traced.losses)
    own, rest = tensors[:count], tensors[count:]
    for number, mask in zip(traced.masks, rest, strict=False):
        backend.set_keras_mask(own[number], mask)
    lifted = traced.outputs[count + len(traced.masks) :]
    for layer, loss, before in zip(traced.losses, rest[len(traced.masks) :], lifted, strict=True):
        layer._losses.append(tf.cast(loss, before.dtype))  # as what is added to it
    left = iter(own)
    return keras.tree.map_structure(
        lambda x: next(left) if isinstance(x, _Hole) else x, traced.structure
    )


def _parts(model: Any) -> list[Any]:
    return list(model._flatten_layers())


def _new_losses(model: Any, before: dict[int, int]) -> list[tuple[Any, Any]]:
    """Return what layers added as losses, and take it off them: it belongs to this graph."""
    found = []
    for layer in _parts(model):
        count = before.get(id(layer), 0)
        found += [(layer, loss) for loss in layer._losses[count:]]
        del layer._losses[count:]
    return found


def _is_array(x: Any) -> bool:
    return keras.ops.is_tensor(x) or hasattr(x, "__array__") or isinstance(x, tf.Variable)


def _plain(x: Any) -> Any:
    return x if isinstance(x, (bool, int, float, str, type(None))) else id(x)
