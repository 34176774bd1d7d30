"""JAX backend of mpcore: flax nnx modules and optax optimizers, steps compiled by jax.jit."""

from mpcore_jax.amp import JaxAmp
from mpcore_jax.backend import JaxBackend

__all__ = ["JaxAmp", "JaxBackend"]
