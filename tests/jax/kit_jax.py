"""JAX in the conformance suite."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import mpcore as mp
from mpcore.scaling.transition import transition
from mpcore_jax import layouts
from mpcore_jax.modules import layers, variables


class ReLU(nnx.Module):
    def __call__(self, x):
        return nnx.relu(x)


mp.register_layer(ReLU, "activation")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.fc1 = nnx.Linear(8, 16, rngs=rngs)
        self.bn = nnx.BatchNorm(16, momentum=0.9, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.act = ReLU()
        self.fc2 = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.fc2(self.act(self.bn(self.fc1(x))))


class JaxKit:
    name = "jax"
    modes = ("compiled",)  # op by op it takes minutes: tests/jax/test_jax.py runs some of it
    differentiates = True
    changes_model = True
    optimizer_holds_parameters = False  # only their names and shapes

    def __init__(self):
        self._transitions = {}

    def model(self):
        return Net(nnx.Rngs(0))

    def sgd(self, model, learning_rate, momentum):
        return nnx.Optimizer(model, optax.sgd(learning_rate, momentum or None), wrt=nnx.Param)

    def sgd_over(self, model, layers, learning_rate):
        def chosen(path, value):
            return isinstance(value, nnx.Param) and path[0] in layers

        return nnx.Optimizer(model, optax.sgd(learning_rate, 0.9), wrt=chosen)

    def adam(self, model, learning_rate):
        return nnx.Optimizer(model, optax.adam(learning_rate), wrt=nnx.Param)

    def loss_fn(self, model):
        def loss_fn(x, y, boost):
            logits = model(x)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return each.mean() * boost

        return loss_fn

    def batch(self, x, y, boost):
        return jnp.asarray(x), jnp.asarray(y), jnp.float32(boost)

    def stepper(self, amp, loss_fn, mode, **call):
        def step(*batch):
            eager = jax.disable_jit() if mode == "eager" else contextlib.nullcontext()
            with eager:
                return amp.step(loss_fn, *batch, keep_grads=True, **call)

        return step

    def snapshot(self, model, optimizer, amp):
        taken = {name: v.get_raw_value() for name, v in variables(model).items()}
        taken |= {f"master:{name}": value for name, value in amp._masters.items()}
        for key, entry in amp.optimizers.items():
            leaves = jax.tree.leaves(nnx.as_pure(entry.opt_state))
            taken |= {f"{key}:{number}": leaf for number, leaf in enumerate(leaves)}
            taken[f"{key}:steps"] = entry.step.get_raw_value()
        return {name: np.array(value, copy=True) for name, value in taken.items()}

    def layer_dtypes(self, model, amp, x):
        seen = {}

        def noting(path, layer):
            cls = type(layer)

            def call(self, *args, **kwargs):
                made = cls.__call__(self, *args, **kwargs)
                seen[path] = str(made.dtype)
                return made

            return type(cls)(cls.__name__, (cls,), {"__call__": call})

        before = {path: layer for path, layer, _ in layers(model) if path}
        classes = {path: type(layer) for path, layer in before.items()}
        for path, layer in before.items():
            object.__setattr__(layer, "__class__", noting(path, layer))
        model(jnp.asarray(x))
        for path, layer in before.items():
            object.__setattr__(layer, "__class__", classes[path])
        return seen

    def transition(self, rule, state, finite, mode):
        def move(tensors, finite):
            return transition(rule, tensors, finite, jnp.where, lambda value: value)

        if (rule, mode) not in self._transitions:  # compiled once for each rule
            self._transitions[rule, mode] = jax.jit(move) if mode == "compiled" else move
        tensors = (jnp.float32(state[0]), *(jnp.int32(count) for count in state[1:]))
        scale, *counts = self._transitions[rule, mode](tensors, jnp.bool_(finite))
        return float(scale), *(int(count) for count in counts)

    def put_weights(self, model, weights):
        own = {n: np.asarray(v.get_raw_value(), np.float32) for n, v in variables(model).items()}
        for name, value in layouts.write(layers(model), own, weights).items():
            variables(model)[name].set_value(jnp.asarray(value))

    def gradients(self, model, grads):
        found = layouts.read(layers(model), grads)
        return {f"{w.path}.{name}": array for w in found for name, array in w.arrays.items()}


kit = JaxKit()
