"""What a layer of unknown class computes: one trace of its call, alone, in 16 bits.

The shapes are those that Keras built it with; a graph is made, in which nothing runs. Layers
inside are traced with it. Tried with tensorflow 2.21.0 and Keras 3.15.1.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras.src.backend import AutocastScope

from mpcore.policy.evidence import Evidence, Judged, Judgement, evidence_of, setting
from mpcore.tools.inspection.trace import neutral_op, words

if TYPE_CHECKING:
    import keras

__all__ = ["judged"]

_ROWS = 2  # where a shape leaves an axis open
_BIDIRECTIONAL = "Conv2DBackpropInput", "Conv3DBackpropInputV2"
_NAMES = {
    "SelectV2": "where",
    "ResourceGather": "gather",
    "FusedBatchNormV3": "batch_norm",
    "SquaredDifference": "mul_div",
    "RealDiv": "mul_div",
    "Neg": "mul_div",
    "BiasAdd": "add_sub",
    **dict.fromkeys(_BIDIRECTIONAL, "conv_transpose"),
}
_FLOATS = (tf.bfloat16, tf.float32)
_MOVES = words(
    "ReadVariableOp Reshape Identity IdentityN Transpose Const Shape ShapeN Pack Unpack Slice "
    "StridedSlice Split SplitV Squeeze ExpandDims StopGradient PreventGradient Placeholder NoOp "
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp Fill ZerosLike OnesLike "
    "BroadcastTo Empty Range Cast"
)

_KNOWN = Judged()


def judged(layer: keras.Layer, call: Any) -> Judgement:
    """Return what the call of ``layer`` makes it; the same for equal layers of its class.

    Args:
        layer: built, with weights.
        call: its call, without what a plan put over it.
    """
    return _KNOWN.of(type(layer), _key(layer), lambda: _evidence(layer, call))


def _key(layer: keras.Layer) -> Any:
    """Return what tells layers of a class apart: shapes of weights, and settings."""
    shapes = tuple(tuple(weight.shape) for weight in layer.weights)
    settings = tuple(
        (name, setting(value))
        for name, value in vars(layer).items()
        if not name.startswith("_") and name not in ("name", "built", "call")
    )
    return shapes, settings, str(getattr(layer, "_build_shapes_dict", None))


def _evidence(layer: keras.Layer, call: Any) -> Evidence:
    built = getattr(layer, "_build_shapes_dict", None)
    shapes = [tuple(shape) for shape in (built or {}).values() if isinstance(shape, tuple | list)]
    if not shapes or len(shapes) != len(built or {}):
        return Evidence(why="its input shapes are not known")
    whole = [tuple(_ROWS if axis is None else axis for axis in shape) for shape in shapes]

    def run(*given: Any) -> Any:
        with AutocastScope("bfloat16"):
            return call(*given)

    for dtype in (tf.bfloat16, tf.int32):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it says of inputs that are ours
                specs = [tf.TensorSpec(shape, dtype) for shape in whole]
                graph = tf.function(run, autograph=False).get_concrete_function(*specs).graph
        except Exception:  # the input is a guess: its code may raise anything
            continue
        return _told(graph)
    return Evidence(why="its call does not run in 16 bits")


def _told(graph: tf.Graph) -> Evidence:
    alone: set[str] = set()  # names of tensors that are made of weights alone
    heard = []
    for op in graph.get_operations():
        given = [x for x in op.inputs if x.dtype in _FLOATS]
        read = op.type in ("ReadVariableOp", "ResourceGather")
        weighs = read or any(x.name in alone for x in given)
        if op.type == "ReadVariableOp" or (given and all(x.name in alone for x in given)):
            alone.update(x.name for x in op.outputs)
        dtypes = {x.dtype for x in given} or {x.dtype for x in op.outputs if x.dtype in _FLOATS}
        if op.type in _MOVES or not dtypes:
            continue
        name = neutral_op("tf", op.type) or _NAMES.get(op.type, "")
        heard.append((name, weighs, dtypes))
    return evidence_of(heard, tf.float32)
