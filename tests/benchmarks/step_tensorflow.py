"""Variants of one training step in tf.keras, all in bfloat16 but the first."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import tensorflow as tf
from keras import layers

import mpcore as mp

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "char_transformer"))

SCALE = "loss_scale=dynamic"


def set_threads(count: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def versions() -> dict[str, str]:
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "mpcore": mp.__version__,
    }


def build(name: str, policy: str = "float32") -> keras.Model:
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    if name == "transformer":
        from model_tensorflow import Transformer

        model = Transformer(65, 32, 128, 4, 2)
        model(tf.zeros((1, 32), tf.int32))
    elif name == "mlp":
        hidden = [layers.Dense(256, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((256,)), *hidden, layers.Dense(10)])
    elif name == "many":
        model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(100))])
    else:
        model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dense(128, activation="relu"),
                layers.Dense(10),
            ]
        )
    keras.config.set_dtype_policy("float32")
    return model


def variants(name: str, x, y) -> dict:
    x = tf.constant(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
    y = tf.constant(y)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def adam():
        return keras.optimizers.AdamW(1e-4)

    def compiled(model, optimizer, scaled: bool):
        variables = model.trainable_variables
        optimizer.build(variables)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x, training=True))
                target = optimizer.scale_loss(loss) if scaled else loss
            optimizer.apply(tape.gradient(target, variables), variables)
            return loss

        return lambda: step(x, y)

    def native():
        optimizer = keras.optimizers.LossScaleOptimizer(adam())
        return compiled(build(name, "mixed_bfloat16"), optimizer, scaled=True)

    def minimum():
        """The native policy with the least that a scaler can do, written by hand."""
        model, optimizer = build(name, "mixed_bfloat16"), adam()
        variables, scale = model.trainable_variables, tf.Variable(2.0**16)
        optimizer.build(variables)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x, training=True))
                target = loss * scale
            grads = [tf.convert_to_tensor(g) for g in tape.gradient(target, variables)]
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in grads])

            def take():
                inverse = 1.0 / scale
                optimizer.apply([g * inverse for g in grads], variables)

            def skip():
                scale.assign(scale * 0.5)

            tf.cond(finite, take, skip)
            return loss

        return lambda: step(x, y)

    def ours(policy):
        model = build(name)
        amp = mp.prepare(model, adam(), policy)

        def loss_fn(x, y):
            return cross_entropy(y, model(x, training=True))

        return lambda: amp.step(loss_fn, x, y)

    def ours_in_fit(policy):
        model = build(name)
        amp = mp.prepare(model, adam(), policy)
        return compiled(model, amp.optimizer, scaled=True)

    return {
        "float32": compiled(build(name), adam(), scaled=False),
        "native": native(),
        "minimum": minimum(),
        "mpcore by layer": ours(f"mixed_bfloat16, {SCALE}"),
        "mpcore optimizer": ours_in_fit(f"mixed_bfloat16, {SCALE}"),
        "mpcore by model": ours(f"model_bfloat16, {SCALE}"),
        "mpcore, no scale": ours("mixed_bfloat16"),
    }
