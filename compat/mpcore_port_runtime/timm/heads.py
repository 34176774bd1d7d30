"""Pools and heads of networks, as timm has them.

Source: timm 1.0.31 ``layers/adaptive_avgmax_pool.py``, ``layers/classifier.py``.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops

from mpcore_port_runtime import torch_nn
from mpcore_port_runtime.others import to_2tuple
from mpcore_port_runtime.refusal import only

__all__ = [
    "ClassifierHead",
    "SelectAdaptivePool2d",
    "adaptive_avgmax_pool2d",
    "adaptive_catavgmax_pool2d",
    "create_classifier",
    "select_adaptive_pool2d",
]

_KINDS = ("", "avg", "max", "avgmax", "catavgmax")


def adaptive_avgmax_pool2d(x: Any, output_size: Any = 1) -> Any:
    """Return the mean of the average and the largest."""
    return select_adaptive_pool2d(x, "avgmax", output_size)


def adaptive_catavgmax_pool2d(x: Any, output_size: Any = 1) -> Any:
    """Return averages, and the largest in channels behind them."""
    return select_adaptive_pool2d(x, "catavgmax", output_size)


def select_adaptive_pool2d(x: Any, pool_type: str = "avg", output_size: Any = 1) -> Any:
    """Return (N, C, H, W) at another size.

    Raises:
        AssertionError: no such kind.
    """
    if pool_type not in _KINDS[1:]:
        msg = f"Invalid pool type: {pool_type}"
        raise AssertionError(msg)
    whole = to_2tuple(output_size) == (1, 1)
    mean = largest = None
    if pool_type != "max":
        mean = x.mean((2, 3), True) if whole else ops.adaptive_avg_pool2d(x, output_size)
    if pool_type != "avg":
        largest = x.amax((2, 3), True) if whole else ops.adaptive_max_pool2d(x, output_size)
    if mean is None or largest is None:
        return largest if mean is None else mean
    return ops.cat((mean, largest), 1) if pool_type == "catavgmax" else 0.5 * (mean + largest)


class SelectAdaptivePool2d(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """timm.layers.SelectAdaptivePool2d."""

    def __init__(
        self,
        output_size: Any = 1,
        pool_type: str = "fast",
        flatten: bool = False,
        input_fmt: str = "NCHW",
    ) -> None:
        super().__init__()
        only("input_fmt", input_fmt, "NCHW", "NHWC")
        self.pool_type, self.input_fmt = pool_type or "", input_fmt
        self.output_size, self.is_flat = output_size, flatten
        kind = self.pool_type.lower()
        fast = kind.startswith("fast") or (bool(kind) and input_fmt != "NCHW")
        kind = kind.removeprefix("fast") or ("avg" if fast else "")
        if kind not in _KINDS:
            msg = f"Invalid pool type: {pool_type}"
            raise AssertionError(msg)
        if fast and to_2tuple(output_size) != (1, 1):
            msg = "Fast pooling and non NCHW input formats require output_size == 1."
            raise AssertionError(msg)
        self.kind = kind

    def is_identity(self) -> bool:
        """Return whether nothing is pooled."""
        return not self.pool_type

    def feat_mult(self) -> int:
        """Return how many times as many channels come out."""
        return 2 if self.kind == "catavgmax" else 1

    def construct(self, x: Any) -> Any:
        """Return what is left of pictures."""
        if not self.kind:
            return x.flatten(start_dim=1) if self.is_flat else x
        if self.input_fmt == "NHWC":
            x = select_adaptive_pool2d(x.permute(0, 3, 1, 2), self.kind).permute(0, 2, 3, 1)
        else:
            x = select_adaptive_pool2d(x, self.kind, self.output_size)
        return x.flatten(start_dim=1) if self.is_flat else x


def create_classifier(
    num_features: int,
    num_classes: int,
    pool_type: str = "avg",
    use_conv: bool = False,
    input_fmt: str = "NCHW",
    drop_rate: float | None = None,
) -> Any:
    """Return a pool and a last layer, and dropout between them where ``drop_rate`` is given."""
    if not pool_type and num_classes != 0 and not use_conv:
        msg = (
            "Pooling can only be disabled if classifier is also removed or conv classifier is used"
        )
        raise AssertionError(msg)
    pool = SelectAdaptivePool2d(1, pool_type, bool(pool_type) and not use_conv, input_fmt)
    pooled = num_features * pool.feat_mult()
    last = nn.Identity()
    if num_classes > 0:
        last = (
            torch_nn.Conv2d(pooled, num_classes, 1)
            if use_conv
            else torch_nn.Linear(pooled, num_classes)
        )
    return (pool, last) if drop_rate is None else (pool, torch_nn.Dropout(drop_rate), last)


class ClassifierHead(nn.Cell):  # type: ignore[misc]
    """timm.layers.ClassifierHead: a pool, dropout, and a last layer."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        pool_type: str = "avg",
        drop_rate: float = 0.0,
        use_conv: bool = False,
        input_fmt: str = "NCHW",
    ) -> None:
        super().__init__()
        self.in_features, self.use_conv, self.input_fmt = in_features, use_conv, input_fmt
        self.global_pool, self.fc = create_classifier(
            in_features, num_classes, pool_type, use_conv, input_fmt
        )
        self.num_features = in_features * self.global_pool.feat_mult()
        self.drop_rate = drop_rate
        self.drop = torch_nn.Dropout(drop_rate)

    def reset(self, num_classes: int, pool_type: str | None = None) -> None:
        """Put another last layer there, and another pool."""
        kind = self.global_pool.pool_type if pool_type is None else pool_type
        settings = self.in_features, num_classes, kind, self.use_conv, self.input_fmt
        self.global_pool, self.fc = create_classifier(*settings)
        self.num_features = self.in_features * self.global_pool.feat_mult()

    def construct(self, x: Any, pre_logits: bool = False) -> Any:
        """Return scores, or what the last layer takes."""
        x = self.drop(self.global_pool(x))
        if not pre_logits:
            x = self.fc(x)
        return x.flatten(start_dim=1) if self.use_conv and self.global_pool.pool_type else x
