"""Layers with torch's arguments, which classes of scripts are made of: ``port.heirs.Linear``.

A class without an ``__init__`` of its own is made anywhere, with what torch's layer takes. Each is
of MindSpore's class, so that its Parameters have torch's names.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops
from mindspore.common.initializer import Normal

from mpcore_port_runtime import activations, layers, rarer_layers
from mpcore_port_runtime.refusal import only

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "AvgPool1d",
    "BCELoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "L1Loss",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "SmoothL1Loss",
    "Softmax",
    "Threshold",
]

_NEEDED = object()  # stands for a setting that has no default
_UNUSED = ("device", "inplace", "size_average", "reduce", "dtype")


def _with_torchs(layer: Any, words: dict[str, str] | None = None, **takes: Any) -> Any:
    """Return a class of a layer that takes torch's settings, in torch's order.

    Args:
        layer: what MindSpore, or the runtime, has for it.
        words: what settings are called there, where that is something else.
        takes: torch's settings and their defaults.
    """
    called = words or {}

    class Heir(layer):  # type: ignore[misc]
        def __init__(self, *args: Any, **given: Any) -> None:
            if len(args) > len(takes) or set(given) - set(takes):
                msg = f"{type(self).__name__} takes {', '.join(takes)}"
                raise TypeError(msg)
            asked = {**takes, **dict(zip(takes, args, strict=False)), **given}
            for name in ("size_average", "reduce"):
                only(name, asked.get(name), None)
            only("dtype", asked.get("dtype"), None, ms.float32)
            missing = [name for name, value in asked.items() if value is _NEEDED]
            if missing:
                msg = f"{type(self).__name__} needs {', '.join(missing)}"
                raise TypeError(msg)
            kept = {called.get(k, k): value for k, value in asked.items() if k not in _UNUSED}
            super().__init__(**kept)

    Heir.__name__ = Heir.__qualname__ = layer.__name__
    return Heir


ReLU = _with_torchs(nn.ReLU, inplace=False)
ReLU6 = _with_torchs(activations.ReLU6, inplace=False)
SiLU = _with_torchs(nn.SiLU, inplace=False)
Mish = _with_torchs(activations.Mish, inplace=False)
SELU = _with_torchs(layers.SELU, inplace=False)
Hardswish = _with_torchs(activations.Hardswish, inplace=False)
Hardsigmoid = _with_torchs(nn.HSigmoid, inplace=False)
ELU = _with_torchs(activations.ELU, alpha=1.0, inplace=False)
CELU = _with_torchs(nn.CELU, alpha=1.0, inplace=False)
Hardtanh = _with_torchs(activations.Hardtanh, min_val=-1.0, max_val=1.0, inplace=False)
LeakyReLU = _with_torchs(activations.LeakyReLU, negative_slope=0.01, inplace=False)
Threshold = _with_torchs(nn.Threshold, threshold=_NEEDED, value=_NEEDED, inplace=False)
PReLU = _with_torchs(
    nn.PReLU,
    {"num_parameters": "channel", "init": "w"},
    num_parameters=1,
    init=0.25,
    device=None,
    dtype=None,
)
GLU = _with_torchs(nn.GLU, {"dim": "axis"}, dim=-1)
Dropout1d = _with_torchs(rarer_layers.Dropout1d, p=0.5, inplace=False)
Dropout2d = _with_torchs(layers.Dropout2d, p=0.5, inplace=False)
Dropout3d = _with_torchs(rarer_layers.Dropout3d, p=0.5, inplace=False)
MSELoss = _with_torchs(nn.MSELoss, size_average=None, reduce=None, reduction="mean")
L1Loss = _with_torchs(nn.L1Loss, size_average=None, reduce=None, reduction="mean")
SmoothL1Loss = _with_torchs(
    nn.SmoothL1Loss, size_average=None, reduce=None, reduction="mean", beta=1.0
)
BCELoss = _with_torchs(nn.BCELoss, weight=None, size_average=None, reduce=None, reduction="mean")


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
        only("dtype", dtype, None, ms.float32)
        super().__init__(int(in_features), int(out_features), has_bias=bool(bias))


class Embedding(layers.Embedding):
    """torch.nn.Embedding."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        only("max_norm", max_norm, None)
        only("scale_grad_by_freq", scale_grad_by_freq, False)
        only("dtype", dtype, None, ms.float32)
        start = {"padding_idx": padding_idx, "embedding_table": Normal(1.0)}
        super().__init__(num_embeddings, embedding_dim, **start)


class Dropout(nn.Dropout):  # type: ignore[misc]
    """torch.nn.Dropout; other random numbers."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p=float(p))
        self.inplace = inplace


class GELU(nn.GELU):  # type: ignore[misc]
    """torch.nn.GELU."""

    def __init__(self, approximate: str = "none") -> None:
        only("approximate", approximate, "none", "tanh")
        super().__init__(approximate=approximate == "tanh")


class Softmax(nn.Softmax):  # type: ignore[misc]
    """torch.nn.Softmax."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:  # torch's name
        """Return the shares along the axis, or along the one that the rank says."""
        return layers.softmax(input) if self.dim is None else ops.softmax(input, axis=self.dim)


class LogSoftmax(nn.LogSoftmax):  # type: ignore[misc]
    """torch.nn.LogSoftmax."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Any) -> Any:  # torch's name
        """Return logarithms of the shares along the axis, or along the one that the rank says."""
        if self.dim is None:
            return layers.log_softmax(input)
        return ops.log_softmax(input, axis=self.dim)


class MaxPool1d(nn.MaxPool1d):  # type: ignore[misc]
    """torch.nn.MaxPool1d of no padding: its windows lie side by side where no stride is given."""

    def __init__(
        self,
        kernel_size: int,
        stride: int | None = None,
        padding: int = 0,
        dilation: int = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        only("padding", padding, 0)
        only("dilation", dilation, 1)
        only("return_indices", return_indices, False)
        only("ceil_mode", ceil_mode, False)
        super().__init__(kernel_size, kernel_size if stride is None else stride)


class AvgPool1d(nn.AvgPool1d):  # type: ignore[misc]
    """torch.nn.AvgPool1d of no padding, as above."""

    def __init__(
        self,
        kernel_size: int,
        stride: int | None = None,
        padding: int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        only("padding", padding, 0)
        only("ceil_mode", ceil_mode, False)
        super().__init__(kernel_size, kernel_size if stride is None else stride)
