"""The graph part of this backend: models lifted, changed; see ``graph_export`` for files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from mpcore.errors import GraphError
from mpcore.graph.part import Lifted, both, refuse_source
from mpcore.graph.timing import refuse_timing
from mpcore_tensorflow.graph_export import export, refuse_prepared
from mpcore_tensorflow.graph_fold import fold
from mpcore_tensorflow.graph_forward import Lowering, layers_of
from mpcore_tensorflow.graph_plan import device_type, plans_of
from mpcore_tensorflow.graph_proof import prove
from mpcore_tensorflow.graph_rewritten import Rewritten
from mpcore_tensorflow.graph_run import Runner
from mpcore_tensorflow.graph_trace import arguments_of
from mpcore_tensorflow.layers import variable_names, walk
from mpcore_tensorflow.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras
    import numpy.typing as npt

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.part import Change
    from mpcore.graph.timing import Timed
    from mpcore.policy.policy import Policy

__all__ = [
    "arrays",
    "build",
    "changed",
    "export",
    "find",
    "fold",
    "lift",
    "plan",
    "source",
    "timed",
]


def lift(model: keras.Model, example: Any, /, *, whole: bool) -> Lifted:
    """Return a model as graphs; see ``mpcore.graph.part.GraphPart``.

    It is lifted for inference unless the example says ``training``.
    """
    refuse_prepared(model)
    if whole:
        raise _not_built(model)
    args, kwargs = arguments_of(model, example)
    ways = [{"training": False, **kwargs}]
    lowering = Lowering(None, layers_of(model))
    runner = prove(model, lambda call: Runner(model, call, lowering), args, ways)
    pieces = tuple(lowered.piece for lowered in runner.met.values())
    return Lifted(tuple(piece.graph for piece in pieces), model, example, pieces)


def plan(lifted: Lifted, policy: Policy, /, device: str = "") -> tuple[GraphPlan, ...]:
    """Return the plan of each graph."""
    where = device.partition(":")[0].upper() or device_type()
    layers = layers_of(lifted.model)
    return tuple(
        found
        for piece in lifted.handle
        for found in plans_of(piece, policy, layers, where, output=policy.output).values()
    )


def arrays(lifted: Lifted, /) -> Mapping[str, npt.NDArray[Any]]:
    """Return the values of parameters and buffers by name; those of 16 bits as float32."""
    paths = variable_names(lifted.model)
    found = {}
    for variable in lifted.model.variables:
        value = variable.value
        if value.dtype in (tf.float16, tf.bfloat16):
            value = tf.cast(value, tf.float32)
        found[paths.get(id(variable), variable.path)] = np.array(value)
    return found


def build(lifted: Lifted, graph: Graph, new: Mapping[str, npt.NDArray[Any]], /) -> Any:
    """Raise GraphError: new models are not made of a graph here."""
    del graph, new
    raise _not_built(lifted.model)


def _not_built(model: keras.Model) -> GraphError:
    msg = (
        f"{type(model).__name__}: no new model with other weights is made of a graph in tf.keras, "
        "where a layer of Keras is several operations; mp.export writes the graph as it is"
    )
    return GraphError(msg)


def find(model: keras.Model, path: str, /) -> Any:
    """Return the layer or variable of a dotted path; None where there is none."""
    model = model.original if isinstance(model, Rewritten) else model
    layers = {str(entry.path): entry.layer for entry in walk(model)}
    names = {path: key for key, path in variable_names(model).items()}
    found = [v for v in model.variables if id(v) == names.get(path)]
    return layers.get(path, found[0] if found else None)


def changed(model: keras.Model, change: Change, example: Any, /) -> keras.Model:
    """Return a model with the variables of ``model`` whose graphs are changed."""
    refuse_prepared(model, rewritten=True)
    if isinstance(model, Rewritten):
        model, change = model.original, both(model.change, change)
    made = Rewritten(model, change)
    if example is not None:
        args, kwargs = arguments_of(model, example)
        with left_alone(model, None):
            made(*args, **kwargs)
    return made


def source(model: keras.Model, policy: Policy, example: Any, /) -> str:
    """Raise GraphError: source is written of networks of MindSpore alone."""
    del example
    refuse_source(model, "tf.keras", policy, "writes it as a SavedModel")


def timed(model: keras.Model, policy: Policy, example: Any, /) -> tuple[Timed, ...]:
    """Raise GraphError: calls of a graph are timed one by one in torch alone."""
    del policy, example
    refuse_timing(type(model).__name__, "tf.keras")
