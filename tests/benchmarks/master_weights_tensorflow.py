"""A step of a multilayer perceptron in tf.keras under one scheme of master weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

import mpcore as mp

if TYPE_CHECKING:
    from collections.abc import Callable


def set_threads(count: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def versions() -> dict[str, str]:
    return {"tensorflow": tf.__version__, "keras": keras.__version__, "mpcore": mp.__version__}


def device() -> str:
    return "gpu" if tf.config.list_physical_devices("GPU") else "cpu"


def build(policy: str, width: int, layers: int, rows: int) -> Callable[[], object]:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *hidden])
    # The cost is what is measured; what bfloat16 alone loses is known.
    amp = mp.prepare(model, keras.optimizers.AdamW(1e-4), policy, count_lost_updates="off")
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(rows, width)).astype(np.float32))

    def loss_fn(x):
        return tf.reduce_mean(tf.square(tf.cast(model(x, training=True), tf.float32)))

    return lambda: amp.step(loss_fn, x).loss
