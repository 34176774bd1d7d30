"""The conformance kit of the tf.keras backend."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import mpcore as mp
from mpcore.conformance.harness import DriverKit
from mpcore.step.result import StepValues
from mpcore_tensorflow import emulated_ascend
from mpcore_tensorflow.layers import variable_names


class _Kit(DriverKit):
    name = "tensorflow"
    modes = ("eager", "compiled")
    differentiates = changes_model = optimizer_holds_parameters = True
    saturating_steps = 200

    def model(self):
        keras.utils.set_random_seed(0)
        return keras.Sequential(
            [
                layers.Input((8,)),
                layers.Dense(16, name="fc1"),
                layers.BatchNormalization(epsilon=1e-5, momentum=0.9, name="bn"),
                layers.ReLU(name="act"),
                layers.Dense(4, name="fc2"),
            ]
        )

    def sgd(self, model, learning_rate, momentum):
        return keras.optimizers.SGD(learning_rate, momentum=momentum)

    def adam(self, model, learning_rate):
        return keras.optimizers.Adam(learning_rate)

    def loss_fn(self, model):
        cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.autograph.experimental.do_not_convert  # it cannot find the source of this module
        def loss_fn(x, y, boost):
            return cross_entropy(y, model(x, training=True)) * boost

        return loss_fn

    def batch(self, x, y, boost):
        return tf.constant(x), tf.constant(y), tf.constant(boost, tf.float32)

    def stepper(self, amp, loss_fn, mode, **call):
        """Eager is amp.step (itself one compiled step); compiled a custom loop, where it can be.

        ``amp.optimizer.apply`` knows one optimizer and no micro-batches.
        """
        loops = set(call) <= {"clip_norm"} and len(amp.optimizers) == 1
        if mode == "compiled" and loops and callable(loss_fn):
            return _custom_loop(amp, loss_fn, call.get("clip_norm"))
        return lambda *batch: amp.step(loss_fn, *batch, keep_grads=True, **call)

    def sgd_over(self, model, layers, learning_rate):
        optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
        optimizer.build([v for n in layers for v in model.get_layer(n).trainable_variables])
        return optimizer

    def losses(self, model):
        loss_fn = self.loss_fn(model)

        @tf.autograph.experimental.do_not_convert
        def steady(x, y, boost):
            return loss_fn(x, y, tf.ones_like(boost))

        return {"a": steady, "b": loss_fn}

    def counter(self):
        count = tf.Variable(0)

        @tf.autograph.experimental.do_not_convert
        def add():
            count.assign_add(1)

        return add, lambda: int(count.numpy())

    def memory(self, model):
        memory, loss_fn = tf.Variable(np.zeros(16, "f4")), self.loss_fn(model)

        @tf.autograph.experimental.do_not_convert
        def remembering(x, y, boost):
            loss = loss_fn(x, y, boost)
            memory.assign_add(tf.ones(16))
            return loss

        return memory, remembering, memory.numpy

    def emulated_ascend(self):
        return emulated_ascend()

    def snapshot(self, model, optimizer, amp):
        paths = variable_names(model)
        taken = {paths[id(v)]: v for v in model.weights}  # the states of seeds have no path
        for key, wrapper in amp.optimizers.items():
            kinds = {"slot": wrapper.inner_optimizer.variables, "master": wrapper.masters.values()}
            taken |= {
                f"{key}:{kind}:{i}": v for kind, vs in kinds.items() for i, v in enumerate(vs)
            }
        return {name: np.asarray(v.value, np.float32).copy() for name, v in taken.items()}

    def layer_dtypes(self, model, amp, x):
        seen = {}
        for layer in model.layers:
            original = layer.call

            def call(*args, original=original, layer=layer, **kwargs):
                outputs = original(*args, **kwargs)
                seen[layer.name] = outputs.dtype.name
                return outputs

            vars(layer)["call"] = call  # past the guard: a look, no change
        model(x, training=False)
        return seen

    def transition(self, rule, state, finite, mode):
        key = (rule, mode)
        if key not in self._transitions:
            run = _transition(rule)
            if mode == "compiled":
                run = tf.function(run, autograph=False)
            self._transitions[key] = run
        tensors = (
            tf.constant(state[0], tf.float32),
            *(tf.constant(count, tf.int32) for count in state[1:]),
        )
        moved = self._transitions[key](tensors, tf.constant(finite))
        assert moved[0].dtype == tf.float32
        return tuple(value.numpy().item() for value in moved)

    def __init__(self):
        self._transitions = {}  # traced once for each rule


def _transition(rule):
    def run(state, finite):
        return mp.transition(rule, state, finite, tf.where, lambda value: value)

    return run


def _custom_loop(amp, loss_fn, clip_norm):
    """Return a step as in a user's own loop, and as Keras's train_step does it."""
    optimizer, variables = amp.optimizer, amp.model.trainable_variables
    optimizer.inner_optimizer.global_clipnorm = clip_norm
    paths = variable_names(amp.model)
    names = [paths[id(v)] for v in variables]

    @tf.function(autograph=False)
    def train(*batch):
        with tf.GradientTape() as tape:
            loss = loss_fn(*batch)
            scaled = optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, [v.value for v in variables])
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss, grads

    def step(*batch):
        before = amp.state
        loss, grads = train(*batch)
        # an embedding's gradient is sparse
        true = [tf.cast(tf.convert_to_tensor(g), tf.float32) / before.scale for g in grads]
        finite = np.bool_(amp.state.skipped_steps == before.skipped_steps)
        norms = np.array([np.linalg.norm(grad.numpy()) for grad in true], np.float32)
        values = StepValues(loss.numpy(), finite, norms, before.scale, amp.state.scale, 0)
        return mp.StepResult(values, names, lambda x: x, dict(zip(names, true, strict=True)))

    return step


kit = _Kit()
