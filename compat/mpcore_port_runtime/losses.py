"""Losses that MindSpore lacks or differentiates wrongly on a CPU; torch's signatures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.activations import logsigmoid, softplus

__all__ = [
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "GaussianNLLLoss",
    "KLDivLoss",
    "MultiLabelSoftMarginLoss",
    "PoissonNLLLoss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "ctc_loss",
    "gaussian_nll_loss",
    "kl_div",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]


def reduced(each: Any, reduction: str) -> Any:
    """Return the losses themselves, or what ``reduction`` makes of them."""
    if reduction == "none":
        return each
    if reduction == "sum":
        return each.sum()
    if reduction == "batchmean":
        return each.sum() / each.shape[0]
    if reduction != "mean":
        msg = f"`reduction` must be 'none', 'mean', 'sum' or 'batchmean', got {reduction!r}"
        raise ValueError(msg)
    return each.mean()


def binary_cross_entropy_with_logits(
    input: Any,  # torch's name
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """Return torch.nn.functional.binary_cross_entropy_with_logits.

    The gradient of MindSpore's mean divides by the number of elements that it saw first in the
    process, on CPU (2.10.0): a last, smaller batch gets a wrong one.
    """
    each = softplus(input) - input * target
    if pos_weight is not None:
        each = each + (pos_weight - 1) * target * softplus(-input)
    if weight is not None:
        each = each * weight
    return reduced(each, reduction)


def kl_div(
    input: Any,  # torch's name
    target: Any,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    """Return torch.nn.functional.kl_div of log-probabilities.

    MindSpore's own has no gradient of the target, on CPU (2.10.0).
    """
    if log_target:
        return reduced(ops.exp(target) * (target - input), reduction)
    positive = target > 0
    logs = ops.log(ops.where(positive, target, ops.ones_like(target)))
    each = ops.where(positive, target * (logs - input), ops.zeros_like(target))
    return reduced(each, reduction)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return torch.nn.functional.cosine_similarity: each norm is at least ``eps``.

    That is not differentiated, as there.

    Source: ``cosine_similarity`` in aten/src/ATen/native/Distance.cpp, torch 2.13.0.
    """
    parts = []
    for x in (x1, x2):
        square = (x * x).sum(dim, keepdims=True)
        some = square > 0  # the root has no gradient at zero
        root = ops.sqrt(ops.where(some, square, ops.ones_like(square)))
        norm = ops.where(some, root, ops.zeros_like(root))
        least = ops.maximum(norm, Tensor(eps, norm.dtype))
        parts.append(x / (norm + ops.stop_gradient(least - norm)))
    return (parts[0] * parts[1]).sum(dim)


def soft_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Return torch.nn.functional.soft_margin_loss, of targets that are 1 and -1."""
    return reduced(ops.log1p(ops.exp(-input * target)), reduction)


def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """Return torch.nn.functional.multilabel_soft_margin_loss."""
    each = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    if weight is not None:
        each = each * weight
    return reduced(each.sum(-1) / input.shape[-1], reduction)


def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Return torch.nn.functional.gaussian_nll_loss; below ``eps`` a variance keeps its gradient."""
    var = var * ops.ones_like(input) if isinstance(var, float) else var
    if bool((ops.stop_gradient(var) < 0).any()):
        msg = "var has negative entry/entries"
        raise ValueError(msg)
    if var.shape != input.shape:
        axes = sum(y for x, y in zip(input.shape, var.shape, strict=False) if x != y)
        if input.shape[:-1] == var.shape:
            var = var.expand_dims(-1)
        elif input.ndim != var.ndim or axes != 1:
            msg = "var is of incorrect size"
            raise ValueError(msg)
    still = ops.stop_gradient(var)
    var = ops.clamp(still, eps) + (var - still)
    each = 0.5 * (ops.log(var) + (input - target) ** 2 / var)
    return reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)


def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Return torch.nn.functional.poisson_nll_loss."""
    rate = ops.exp(input) if log_input else input
    each = rate - target * (input if log_input else ops.log(input + eps))
    if full:
        above = target > 1
        known = ops.where(above, target, ops.ones_like(target))
        rest = known * ops.log(known) - known + 0.5 * ops.log(2 * math.pi * known)
        each = each + ops.where(above, rest, ops.zeros_like(rest))
    return reduced(each, reduction)


def _distance(one: Any, other: Any, p: float, eps: float) -> Any:
    """Return torch.nn.functional.pairwise_distance."""
    apart = ops.abs(one - other + eps)
    if p == 1:
        return apart.sum(-1)
    return ops.sqrt((apart * apart).sum(-1)) if p == 2 else (apart**p).sum(-1) ** (1.0 / p)


def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """Return torch.nn.functional.triplet_margin_loss."""
    near, far = _distance(anchor, positive, p, eps), _distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, _distance(positive, negative, p, eps))
    return reduced(ops.relu(margin + near - far), reduction)


class TripletMarginLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.TripletMarginLoss."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap
        self.reduction = reduction

    def construct(self, anchor: Any, positive: Any, negative: Any) -> Any:
        """Return how much nearer than the other one the right one has yet to be."""
        settings = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return triplet_margin_loss(anchor, positive, negative, *settings)


class SoftMarginLoss(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.SoftMarginLoss."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def construct(self, scores: Any, target: Any) -> Any:
        """Return the loss of scores against 1 and -1."""
        return soft_margin_loss(scores, target, self.reduction)


class MultiLabelSoftMarginLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.MultiLabelSoftMarginLoss."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__()
        self.weight, self.reduction = weight, reduction

    def construct(self, scores: Any, target: Any) -> Any:
        """Return the loss of a row of scores against 1 and 0."""
        return multilabel_soft_margin_loss(scores, target, self.weight, self.reduction)


class GaussianNLLLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.GaussianNLLLoss."""

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__()
        self.full, self.eps, self.reduction = full, eps, reduction

    def construct(self, mean: Any, target: Any, var: Any) -> Any:
        """Return the loss of means and variances."""
        return gaussian_nll_loss(mean, target, var, self.full, self.eps, self.reduction)


class PoissonNLLLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.PoissonNLLLoss."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        self.options = (log_input, full, eps, reduction)

    def construct(self, rate: Any, target: Any) -> Any:
        """Return the loss of rates, or of their logarithms."""
        return poisson_nll_loss(rate, target, *self.options)


class BCEWithLogitsLoss(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.BCEWithLogitsLoss."""

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__()
        self.weight, self.reduction, self.pos_weight = weight, reduction, pos_weight

    def construct(self, logits: Any, target: Any) -> Any:
        """Return the loss of logits against shares, both of one shape."""
        given = self.weight, self.reduction, self.pos_weight
        return binary_cross_entropy_with_logits(logits, target, *given)


class KLDivLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.KLDivLoss."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        self.options = (reduction, log_target)

    def construct(self, logits: Any, target: Any) -> Any:
        """Return the loss of log-probabilities."""
        return kl_div(logits, target, *self.options)


def cosine_embedding_loss(
    input1: Any,  # torch's names
    input2: Any,
    target: Any,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """Return torch.nn.functional.cosine_embedding_loss, of vectors of zeros too.

    Source: ``cosine_embedding_loss`` in aten/src/ATen/native/Loss.cpp, torch 2.13.0.
    """
    axis, tiny = target.ndim, 1e-12
    product = (input1 * input2).sum(axis)
    first, second = (input1 * input1).sum(axis) + tiny, (input2 * input2).sum(axis) + tiny
    cosine = product / (first * second).sqrt()
    near, far = 1 - cosine, ops.relu(cosine - margin)
    zeros = ops.zeros_like(cosine)
    each = ops.where(target == 1, near, zeros) + ops.where(target == -1, far, zeros)
    return reduced(each, reduction)


class CosineEmbeddingLoss(nn.Cell):  # type: ignore[misc]
    """torch.nn.CosineEmbeddingLoss."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__()
        self.margin, self.reduction = margin, reduction

    def construct(self, input1: Any, input2: Any, target: Any) -> Any:
        """Return the loss of pairs of vectors; 1 means alike, -1 otherwise."""
        return cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class CosineSimilarity(nn.Cell):  # type: ignore[misc]
    """torch.nn.CosineSimilarity."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.options = (dim, eps)

    def construct(self, x1: Any, x2: Any) -> Any:
        """Return the cosines between vectors along one axis."""
        return cosine_similarity(x1, x2, *self.options)


def _lengths(given: Any) -> Any:
    held = given.asnumpy() if isinstance(given, Tensor) else np.array(given)
    return held.reshape(-1).astype(np.int32)


def _in_rows(targets: Any, lengths: Any) -> Any:
    """Return the targets of each sequence in a row of its own, what is behind them a label."""
    held = targets.asnumpy() if isinstance(targets, Tensor) else np.array(targets)
    width = max(int(lengths.max(initial=0)), 1)
    rows = np.zeros((len(lengths), width), np.int32)
    ends = np.cumsum(lengths)
    for row, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        own = held[end - length : end] if held.ndim == 1 else held[row, :length]
        rows[row, :length] = own
    return rows


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return torch.nn.functional.ctc_loss of what ``log_softmax`` gives.

    Where a target does not fit into its input torch's loss is infinite, and MindSpore's raises.
    """
    alone = log_probs.ndim == 2
    log_probs = log_probs.expand_dims(1) if alone else log_probs
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    rows = _in_rows(targets, lengths)
    repeated = (rows[:, 1:] == rows[:, :-1]) & (np.arange(1, rows.shape[1]) < lengths[:, None])
    never = lengths + repeated.sum(1) > inputs  # a blank stands between two equal labels
    fits = np.where(never, 0, lengths).astype(np.int32)
    each = ops.ctc_loss(
        log_probs, Tensor(rows), Tensor(inputs), Tensor(fits), blank, "none", zero_infinity
    )
    each = each[0] if isinstance(each, tuple) else each
    if never.any():
        value = 0.0 if zero_infinity else np.inf
        each = ops.where(Tensor(never), ops.full_like(each, value), each)
    if reduction == "mean":
        each = each / Tensor(np.maximum(lengths, 1)).astype(each.dtype)
    each = each.squeeze(0) if alone and reduction == "none" else each
    return reduced(each, reduction)


class CTCLoss(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.CTCLoss."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__()
        self.blank, self.reduction, self.zero_infinity = blank, reduction, zero_infinity

    def construct(
        self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any
    ) -> Any:
        """Return the loss of ``log_probs``."""
        given = self.blank, self.reduction, self.zero_infinity
        return ctc_loss(log_probs, targets, input_lengths, target_lengths, *given)
