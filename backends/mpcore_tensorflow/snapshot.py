"""Put back what a forward pass outside of a step changes: buffers, seeds, the open step."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["left_alone"]

_SEEDS = "global_seed_generator"


@contextlib.contextmanager
def left_alone(model: keras.Model, amp: Any | None) -> Iterator[None]:
    """Put variables, seeds and TensorFlow's generators back when the block ends.

    Source: keras/src/random/seed_generator.py of Keras 3.15.1 and
    tensorflow/python/eager/context.py of TensorFlow 2.21, for where seeds are held.
    """
    live = _variables(model, amp)
    before = [tf.convert_to_tensor(variable) for variable in live]
    seeds = global_state.get_global_attribute(_SEEDS)
    with _own_seeds():
        try:
            yield
        finally:
            for variable, value in zip(live, before, strict=True):
                if not tf.reduce_all(tf.equal(variable, value)):  # NaN is written again
                    variable.assign(value)
            if global_state.get_global_attribute(_SEEDS) is not seeds:
                global_state.set_global_attribute(_SEEDS, None)
            for optimizer in amp.optimizers.values() if amp is not None else ():
                optimizer.guard.take()  # what it noted belongs to a step that is none


def _variables(model: keras.Model, amp: Any | None) -> list[Any]:
    """Return what a forward pass may write; reading shares memory until then.

    Weights too: a layer like SpectralNormalization assigns to its kernel.
    """
    found = list(model.variables)
    found += [] if amp is None else next(iter(amp.optimizers.values())).guard.variables
    seeds = global_state.get_global_attribute(_SEEDS)
    found += [] if seeds is None else [seeds.state]
    if stateful_random_ops.global_generator is not None:
        found.append(stateful_random_ops.global_generator.state)
    each = {id(variable): variable for variable in found}
    return [v.value if isinstance(v, keras.Variable) else v for v in each.values()]


@contextlib.contextmanager
def _own_seeds() -> Iterator[None]:
    """Put back the generator that gives eager ops their seeds, and forget their kernels."""
    generator = getattr(context.context(), "_rng", None)
    before = None if generator is None else generator.getstate()
    try:
        yield
    finally:
        if generator is not None and generator.getstate() != before:
            generator.setstate(before)
            # A kernel counts what it drew: the same seed must begin a new one.
            context.context().clear_kernel_cache()
