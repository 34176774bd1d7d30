"""What ``mpcore doctor`` runs in TensorFlow: tf.function without XLA, as ``fit`` compiles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from mpcore.backend.probe import Case, Prepared
from mpcore.capabilities.cases import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    _Arrays = dict[str, npt.NDArray[Any]]

__all__ = ["about", "families", "prepare", "read"]

families: tuple[str, ...] = tuple(FAMILIES)

_RATE = 1e-3


def about() -> dict[str, Any]:
    """Return versions, devices, threads and the settings that decide what runs."""
    found = tf.config.list_physical_devices()
    accelerators = [d for d in found if d.device_type != "CPU"]
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return {
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "device": accelerators[0].device_type.lower() if accelerators else "cpu",
        "devices": [d.name.removeprefix("/physical_device:") for d in found],
        "threads": threads or None,  # 0: its own choice
        "settings": {
            "Keras backend": keras.backend.backend(),
            "tf.keras": getattr(tf.keras, "__version__", "unknown"),
            "TF32 allowed": str(tf.config.experimental.tensor_float_32_execution_enabled()),
            "oneDNN": "off" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" else "on",
        },
    }


def prepare(family: str, dtype: str, case: Case, *, grad: bool) -> Prepared:
    """Return the operation of tf.nn (norm, LSTM: Keras layers), ready to be traced and run."""
    inputs, data, axes = _laid_out(family, case)
    if family == "mlp_step":
        return Prepared(_step(dtype, inputs, data, grad=grad))
    held = {name: tf.constant(a, dtype) for name, a in inputs.items()}
    g = tf.constant(data["g"], dtype)
    forward, variables = _layer(family, dtype, inputs) or (_FORWARD[family], {})

    def run(values: dict[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        if not grad:
            return {"y": forward(values)}
        with tf.GradientTape() as tape:
            tape.watch(list(values.values()))
            y = forward(values)
        grads = tape.gradient(y, {**values, **variables}, g)
        return {f"d_{name}": d for name, d in grads.items()}

    traced = tf.function(run, autograph=False)
    return Prepared(_waiting(lambda: traced(held)), axes)


def read(tensor: tf.Tensor) -> tuple[npt.NDArray[Any], str]:
    """Return the values in float32 and the tensor's dtype."""
    return tf.cast(tensor, tf.float32).numpy(), tensor.dtype.name


def _waiting(run: Callable[[], Mapping[str, tf.Tensor]]) -> Callable[[], Mapping[str, tf.Tensor]]:
    def waited() -> Mapping[str, tf.Tensor]:
        result = run()
        if tf.config.list_physical_devices("GPU"):
            tf.test.experimental.sync_devices()
        return result

    return waited


def _laid_out(family: str, case: Case) -> tuple[_Arrays, _Arrays, dict[str, tuple[int, ...]]]:
    """Return inputs and data as TensorFlow wants them, and how to turn its answers back."""
    forth: dict[str, tuple[int, ...]] = {}
    if family == "conv2d":  # NHWC, and a kernel HWIO: no other layout has kernels on CPU
        forth = {"x": (0, 2, 3, 1), "w": (2, 3, 1, 0), "g": (0, 2, 3, 1)}
    if "lstm" in family:  # batch first, kernels transposed; the order of the gates is the same
        forth = {"x": (1, 0, 2), "w_ih": (1, 0), "w_hh": (1, 0), "g": (1, 0, 2)}
    inputs, data = (
        {n: np.ascontiguousarray(a.transpose(forth[n])) if n in forth else a for n, a in v.items()}
        for v in (case.inputs, case.data)
    )
    back = {f"d_{name}": tuple(np.argsort(axes).tolist()) for name, axes in forth.items()}
    return inputs, data, back | ({"y": back["d_g"]} if forth else {})


def _attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """Return what Keras' attention computes between its projections."""
    scores = tf.matmul(q * tf.cast(q.shape[-1] ** -0.5, q.dtype), k, transpose_b=True)
    return tf.matmul(tf.nn.softmax(scores), v)


_FORWARD: dict[str, Callable[[dict[str, tf.Tensor]], tf.Tensor]] = {
    "matmul": lambda v: v["a"] @ v["b"],
    "conv2d": lambda v: tf.nn.conv2d(v["x"], v["w"], 1, "SAME"),
    "elementwise": lambda v: tf.nn.relu(v["x"] * v["y"] + v["x"]),
    "softmax": lambda v: tf.nn.softmax(v["x"]),
    "attention": lambda v: _attention(**v),
}


def _layer(
    family: str, dtype: str, inputs: _Arrays
) -> tuple[Callable[[dict[str, tf.Tensor]], tf.Tensor], dict[str, tf.Variable]] | None:
    """Return a Keras layer's call and its variables under the names of the inputs."""
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    if family == "norm":
        layer = keras.layers.LayerNormalization(epsilon=1e-5, dtype=policy)
        names = ("weight", "bias")
    elif "lstm" in family:
        units = inputs["w_hh"].shape[0]
        layer = keras.layers.LSTM(units, use_bias=False, return_sequences=True, dtype=policy)
        names = ("w_ih", "w_hh")
    else:
        return None
    layer.build(inputs["x"].shape)
    layer.set_weights([inputs[name] for name in names])
    variables = (v.value for v in layer.trainable_variables)
    return lambda v: layer(v["x"]), dict(zip(names, variables, strict=True))


def _step(
    dtype: str, inputs: _Arrays, data: _Arrays, *, grad: bool
) -> Callable[[], Mapping[str, tf.Tensor]]:
    params = {name: tf.Variable(a) for name, a in inputs.items()}
    x, target = (tf.constant(data[name], dtype) for name in ("x", "t"))

    def loss() -> tf.Tensor:
        w1, w2 = (tf.cast(w, dtype) for w in params.values())
        h = tf.tanh(tf.matmul(x, w1, transpose_b=True))
        off = tf.cast(tf.matmul(h, w2, transpose_b=True), tf.float32) - tf.cast(target, tf.float32)
        return tf.reduce_sum(tf.square(off)) / len(x)

    def run() -> Mapping[str, tf.Tensor]:
        if not grad:
            return {"y": loss()}
        with tf.GradientTape() as tape:
            value = loss()
        grads = tape.gradient(value, params)
        for name, w in params.items():
            w.assign_sub(_RATE * grads[name])
        return {f"d_{name}": d for name, d in grads.items()}

    return _waiting(tf.function(run, autograph=False))
