"""What scripts take from torch or torch.nn.functional by a text: activations, and dtypes.

``getattr(F, args.activation)`` is ``getattr(port.torch_named, args.activation)`` in a port.
"""

from __future__ import annotations

from typing import Any

from mindspore import bfloat16, float16, float32, float64, int32, int64, mint, ops

from mpcore_port_runtime import activations, functional, layers

__all__ = [
    "bfloat16",
    "elu",
    "float16",
    "float32",
    "float64",
    "gelu",
    "int32",
    "int64",
    "leaky_relu",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]


def relu(input: Any, inplace: bool = False) -> Any:  # torch's names, here and below
    """Return torch's relu."""
    return mint.nn.functional.relu(input)


def relu6(input: Any, inplace: bool = False) -> Any:
    """Return torch's relu6."""
    return activations.relu6(input)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """Return torch's elu.

    Raises:
        NotImplementedError: ``alpha`` is another number than 1.
    """
    if alpha != 1.0:
        msg = f"`alpha` must be 1.0 in MindSpore's elu, got {alpha!r}"
        raise NotImplementedError(msg)
    return ops.elu(input)


def selu(input: Any, inplace: bool = False) -> Any:
    """Return torch's selu."""
    return functional.selu(input)


def gelu(input: Any, approximate: str = "none") -> Any:
    """Return torch's gelu."""
    return ops.gelu(input, approximate)


def silu(input: Any, inplace: bool = False) -> Any:
    """Return torch's silu."""
    return ops.silu(input)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return torch's leaky_relu."""
    return activations.leaky_relu(input, negative_slope)


def sigmoid(input: Any) -> Any:
    """Return torch's sigmoid."""
    return mint.sigmoid(input)


def tanh(input: Any) -> Any:
    """Return torch's tanh."""
    return mint.tanh(input)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return torch's softplus."""
    return layers.Softplus(beta, threshold)(input)


def softmax(input: Any, dim: int) -> Any:
    """Return torch's softmax."""
    return ops.softmax(input, dim)


def log_softmax(input: Any, dim: int) -> Any:
    """Return torch's log_softmax."""
    return ops.log_softmax(input, dim)
