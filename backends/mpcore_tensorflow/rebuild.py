"""One layer of a Keras model as code; see ``mpcore.backend.rebuild.Rebuild``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from mpcore.backend.rebuild import as_numpy, is_plain
from mpcore.errors import BackendError
from mpcore_tensorflow.layers import walk

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FINDS", "RUNS", "arrays", "constructor"]

_LEFT_OUT = ("_initializer", "_regularizer", "_constraint")

FINDS = """
def layer_of(model, path):
    for name in filter(None, path.split(".")):
        found = getattr(model, name, None)
        model = model.get_layer(name) if found is None else found
    return model
"""

RUNS = """
def run_tensorflow(layer, arrays, inputs, grad, about):
    import keras
    import tensorflow as tf

    given = [tf.constant(x) for x in inputs]
    floats = [x for x in given if x.dtype.is_floating]
    one = given if isinstance(layer, keras.layers.Concatenate) or about["listed"] else given[0]
    called = (lambda: layer(one)) if one is given or len(given) == 1 else lambda: layer(*given)
    called()
    layer.set_weights(list(arrays.values()))
    with tf.GradientTape() as tape:
        for x in floats:
            tape.watch(x)
        trains = about["training"] and "training" in layer._call_signature.parameters
        if trains and one is given:
            out = layer(one, training=True)
        elif trains:
            out = layer(*given, training=True)
        else:
            out = called()
        while isinstance(out, (tuple, list)):
            out = out[0]
    names = [name for name, w in zip(arrays, layer.weights) if w.trainable]
    weights = [w for w in layer.weights if w.trainable]
    wanted = [*floats, *[w.value for w in weights]]
    found = tape.gradient(out, wanted, tf.cast(tf.constant(grad), out.dtype))
    found = [None if g is None else tf.convert_to_tensor(g) for g in found]
    found = [None if g is None else tf.cast(g, tf.float64).numpy() for g in found]
    grads = dict(zip(names, found[len(floats):]))
    after = {n: w.numpy() for n, w in zip(arrays, layer.weights) if not w.trainable}
    return tf.cast(out, tf.float64).numpy(), found[: len(floats)], grads, after
"""


def constructor(model: keras.Model, path: str, compute: str) -> str:
    """Return an expression that makes the layer; ``""`` for a class of somebody's own."""
    layer = _layer(model, path)
    kind = type(layer)
    named = getattr(keras.layers, kind.__name__, None) is kind
    if not named or not kind.__module__.startswith("keras."):
        return ""
    config = {
        name: value
        for name, value in layer.get_config().items()
        if not name.endswith(_LEFT_OUT) and name not in ("name", "trainable", "dtype")
    }
    config["dtype"] = compute if compute == "float32" else f"mixed_{compute}"
    if not is_plain(config):
        return ""
    try:
        kind.from_config(dict(config))
    except (TypeError, ValueError):  # a function of somebody's own inside
        return ""
    return f"keras.layers.{kind.__name__}.from_config({config!r})"


def arrays(model: keras.Model, path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the variables of the layer, in its own order."""
    weights = _layer(model, path).weights
    return {f"{number} {w.name}": as_numpy(w) for number, w in enumerate(weights)}


def _layer(model: keras.Model, path: str) -> Any:
    for entry in walk(model):
        if entry.path == path:
            return entry.layer
    msg = f"the model has no layer {path!r}"
    raise BackendError(msg)
