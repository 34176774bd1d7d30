"""Layers of MindSpore with torch's arguments, for classes that scripts make of torch's layers.

``class Norm(nn.GroupNorm)`` is called as its base where it has no ``__init__`` of its own.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops

from mpcore_port_runtime import norms
from mpcore_port_runtime.layers import softmax
from mpcore_port_runtime.refusal import only

__all__ = ["Dropout", "GroupNorm", "Linear", "MaxPool2d", "Softmax"]


class Linear(nn.Dense):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.Linear."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        only("dtype", dtype, None)
        super().__init__(in_features, out_features, has_bias=bias)


class GroupNorm(norms.GroupNorm):
    """torch.nn.GroupNorm."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        only("bias", bias, True)
        super().__init__(num_groups, num_channels, float(eps), affine)


class Softmax(nn.Softmax):  # type: ignore[misc]
    """torch.nn.Softmax."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:  # torch's name
        """Return the shares along the axis, or along the one that the rank says."""
        return softmax(input) if self.dim is None else ops.softmax(input, axis=self.dim)


class Dropout(nn.Dropout):  # type: ignore[misc]
    """torch.nn.Dropout."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p=float(p))
        self.inplace = inplace


class MaxPool2d(nn.MaxPool2d):  # type: ignore[misc]
    """torch.nn.MaxPool2d."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        only("return_indices", return_indices, False)
        only("dilation", dilation, 1, (1, 1))
        padded = {"pad_mode": "pad"} if padding not in (0, (0, 0)) or ceil_mode else {}
        step = kernel_size if stride is None else stride
        super().__init__(kernel_size, step, padding=padding, ceil_mode=ceil_mode, **padded)
