"""timm's losses besides cross entropy with smoothed or soft labels.

Source: timm 1.0.31 ``loss/*.py``. Compared with the losses and gradients that it gave. Up to 1.0.9
``AsymmetricLossMultiLabel`` gave the sum over the batch (``reduction="sum"``), not its mean.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.losses import binary_cross_entropy_with_logits, kl_div
from mpcore_port_runtime.others import LabelSmoothingCrossEntropy

__all__ = [
    "AsymmetricLossMultiLabel",
    "AsymmetricLossSingleLabel",
    "BinaryCrossEntropy",
    "JsdCrossEntropy",
]


class JsdCrossEntropy(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """timm.loss.JsdCrossEntropy: of the first split's labels, and of how far the splits differ."""

    def __init__(
        self, num_splits: int = 3, alpha: float = 12, smoothing: float | None = 0.1
    ) -> None:
        super().__init__()
        self.num_splits, self.alpha = num_splits, alpha
        self.cross_entropy_loss = LabelSmoothingCrossEntropy(smoothing or 0.0)

    def construct(self, output: Any, target: Any) -> Any:
        """Return the loss of scores, split after split."""
        size = output.shape[0] // self.num_splits
        if size * self.num_splits != output.shape[0]:
            msg = f"{self.num_splits} splits of one size must be given, got {output.shape[0]} rows"
            raise AssertionError(msg)
        splits = [output[n * size : (n + 1) * size] for n in range(self.num_splits)]
        loss = self.cross_entropy_loss(splits[0], target[:size])
        shares = [ops.softmax(one, 1) for one in splits]
        mean = ops.stack(shares).mean(0)
        logs = ops.log(ops.clamp(mean, 1e-7, 1))
        apart = sum(kl_div(logs, share, reduction="batchmean") for share in shares)
        return loss + self.alpha * apart / len(shares)


class BinaryCrossEntropy(nn.Cell):  # type: ignore[misc]
    """timm.loss.BinaryCrossEntropy: labels become a share for each class, perhaps 0 or 1."""

    def __init__(
        self,
        smoothing: float = 0.1,
        target_threshold: float | None = None,
        weight: Any = None,
        reduction: str = "mean",
        sum_classes: bool = False,
        pos_weight: Any = None,
        smooth_dense: bool = False,
    ) -> None:
        super().__init__()
        if not 0.0 <= smoothing < 1.0:
            msg = f"`smoothing` must be in [0, 1), got {smoothing}"
            raise AssertionError(msg)
        self.smoothing, self.target_threshold = smoothing, target_threshold
        self.reduction = "none" if sum_classes else reduction
        self.sum_classes, self.smooth_dense = sum_classes, smooth_dense
        self.weight = weight
        self.pos_weight = _weight(pos_weight)

    def construct(self, x: Any, target: Any) -> Any:
        """Return the loss of scores and labels, or a share for each class."""
        if target.shape[0] != x.shape[0]:
            msg = f"`target` must have {x.shape[0]} rows, got {target.shape[0]}"
            raise AssertionError(msg)
        if target.shape != x.shape:
            classes = x.shape[-1]
            low = self.smoothing / classes
            hit = ops.arange(classes) == target.reshape((-1, 1))
            target = hit.astype(x.dtype) * (1.0 - self.smoothing) + low
        elif self.smooth_dense and self.smoothing:
            target = target * (1.0 - self.smoothing) + 0.5 * self.smoothing
        if self.target_threshold is not None:
            target = (target > self.target_threshold).astype(target.dtype)
        found = binary_cross_entropy_with_logits(
            x, target, self.weight, self.reduction, self.pos_weight
        )
        return found.sum(-1).mean() if self.sum_classes else found


class AsymmetricLossMultiLabel(nn.Cell):  # type: ignore[misc]
    """timm.loss.AsymmetricLossMultiLabel."""

    def __init__(
        self,
        gamma_neg: float = 4,
        gamma_pos: float = 1,
        clip: float | None = 0.05,
        eps: float = 1e-8,
        disable_torch_grad_focal_loss: bool = False,
        smoothing: float = 0.0,
        reduction: str = "batchmean",
        weight: Any = None,
        pos_weight: Any = None,
    ) -> None:
        super().__init__()
        if reduction not in ("batchmean", "sum", "mean", "none"):
            msg = f"`reduction` must be 'batchmean', 'sum', 'mean' or 'none', got {reduction!r}"
            raise ValueError(msg)
        self.gamma_neg, self.gamma_pos, self.clip, self.eps = gamma_neg, gamma_pos, clip, eps
        self.disable_torch_grad_focal_loss = disable_torch_grad_focal_loss
        self.smoothing, self.reduction = smoothing, reduction
        self.weight, self.pos_weight = weight, _weight(pos_weight)

    def construct(self, x: Any, y: Any) -> Any:
        """Return the loss of scores and a share for each class."""
        x, y = x.astype(ms.float32), y.astype(ms.float32)
        if self.smoothing:
            y = y * (1.0 - self.smoothing) + 0.5 * self.smoothing
        share = ops.sigmoid(x)
        rest = 1 - share
        if self.clip is not None and self.clip > 0:
            rest = ops.clamp(rest + self.clip, max=1)
        hits = y * ops.log(ops.clamp(share, min=self.eps))
        if self.pos_weight is not None:
            hits = hits * self.pos_weight
        each = hits + (1 - y) * ops.log(ops.clamp(rest, min=self.eps))
        if self.gamma_neg > 0 or self.gamma_pos > 0:
            sure = share * y + rest * (1 - y)
            power = self.gamma_pos * y + self.gamma_neg * (1 - y)
            focus = _powered(1 - sure, power)
            each = each * (
                ops.stop_gradient(focus) if self.disable_torch_grad_focal_loss else focus
            )
        each = -each if self.weight is None else -each * self.weight
        if self.reduction == "none":
            return each
        if self.reduction == "mean":
            return each.mean()
        return each.sum() / x.shape[0] if self.reduction == "batchmean" else each.sum()


class AsymmetricLossSingleLabel(nn.Cell):  # type: ignore[misc]
    """timm.loss.AsymmetricLossSingleLabel."""

    def __init__(
        self, gamma_pos: float = 1, gamma_neg: float = 4, eps: float = 0.1, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.gamma_pos, self.gamma_neg, self.eps, self.reduction = (
            gamma_pos,
            gamma_neg,
            eps,
            reduction,
        )

    def construct(self, inputs: Any, target: Any, reduction: Any = None) -> Any:
        """Return the loss of scores and labels."""
        del reduction  # as there
        classes = inputs.shape[-1]
        logs = ops.log_softmax(inputs, -1)
        hits = (ops.arange(classes) == target.reshape((-1, 1))).astype(inputs.dtype)
        others = 1 - hits
        share = ops.exp(logs)
        base = 1 - share * hits - (1 - share) * others
        logs = logs * _powered(base, self.gamma_pos * hits + self.gamma_neg * others)
        if self.eps > 0:
            hits = hits * (1 - self.eps) + self.eps / classes
        each = -(hits * logs).sum(-1)
        return each.mean() if self.reduction == "mean" else each


def _weight(value: Any) -> Any:
    """Return a weight as a tensor, as timm's losses keep it."""
    return value if value is None or isinstance(value, Tensor) else Tensor(value, ms.float32)


def _powered(base: Any, power: Any) -> Any:
    """Return a power; one of zero has no gradient, as in torch, where MindSpore's is NaN at 0."""
    return ops.pow(ops.where(power == 0, ops.ones_like(base), base), power)
