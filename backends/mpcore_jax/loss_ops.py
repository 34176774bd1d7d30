"""The neutral ops of losses in JAX; see ``mpcore.backend.loss_ops.LossOps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array

__all__ = ["JaxLossOps"]


class JaxLossOps:
    """Implements ``mpcore.backend.loss_ops.LossOps``."""

    abs = staticmethod(jnp.abs)
    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    sqrt = staticmethod(jnp.sqrt)
    square = staticmethod(jnp.square)
    tanh = staticmethod(jnp.tanh)
    sigmoid = staticmethod(jax.nn.sigmoid)
    relu = staticmethod(jax.nn.relu)
    softplus = staticmethod(jax.nn.softplus)
    log_softmax = staticmethod(jax.nn.log_softmax)
    maximum = staticmethod(jnp.maximum)
    minimum = staticmethod(jnp.minimum)
    clip = staticmethod(jnp.clip)
    where = staticmethod(jnp.where)
    mean = staticmethod(jnp.mean)
    sum = staticmethod(jnp.sum)
    max = staticmethod(jnp.max)
    reshape = staticmethod(jnp.reshape)
    stop_gradient = staticmethod(jax.lax.stop_gradient)

    def concat(self, tensors: Sequence[Array], axis: int) -> Array:
        """Tensors one behind the other."""
        return jnp.concatenate(tuple(tensors), axis)

    def float32(self, x: Array) -> Array:
        """Return ``x`` as float32."""
        return x.astype(jnp.float32)

    def one_hot(self, classes: Array, count: int) -> Array:
        """A last axis of 0 and 1."""
        return jax.nn.one_hot(classes, count, dtype=jnp.float32)

    def cross_entropy(
        self, logits: Array, classes: Array, label_smoothing: float = 0.0, axis: int = -1
    ) -> Array:
        """Mean over all targets."""
        last = jnp.moveaxis(logits, axis, -1)
        if not label_smoothing:
            return optax.softmax_cross_entropy_with_integer_labels(last, classes).mean()
        sharp = jax.nn.one_hot(classes, last.shape[-1], dtype=jnp.float32)
        return optax.softmax_cross_entropy(last, optax.smooth_labels(sharp, label_smoothing)).mean()

    def binary_cross_entropy(self, logits: Array, targets: Array) -> Array:
        """Mean over all targets."""
        return optax.sigmoid_binary_cross_entropy(logits, targets).mean()
