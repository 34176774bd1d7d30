"""What scripts take from packages built on torch, besides networks.

Sources: transformers 4.44.2 ``optimization.py``; timm 1.0.9 ``loss/cross_entropy.py``,
``layers/drop.py``, ``utils/metrics.py``; warmup_scheduler 0.3. Compared with what these gave. What
counts operations (thop, torchsummary) counts parameters alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import repeat
from typing import Any, ClassVar

import mindspore as ms
from mindspore import nn, ops

from mpcore_port_runtime.groups import Optimizer, bias
from mpcore_port_runtime.rates import LRScheduler
from mpcore_port_runtime.schedules import LambdaLR

__all__ = [
    "AdamW",
    "AverageMeter",
    "DropPath",
    "GradualWarmupScheduler",
    "LabelSmoothingCrossEntropy",
    "SoftTargetCrossEntropy",
    "accuracy",
    "clever_format",
    "drop_path",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_linear_schedule_with_warmup",
    "profile",
    "summary",
    "to_2tuple",
]


# --- transformers ---------------------------------------------------------------------------------


class AdamW(Optimizer):
    """transformers.AdamW: eps is added before the correction, weights decay behind the step."""

    keeps: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        no_deprecation_warning: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"correct_bias": correct_bias})

    def move(self, place: int, grad: Any, group: Any, rate: Any) -> None:
        """Move one parameter."""
        param = self.parameters[place]
        beta1, beta2 = group["betas"]
        mean = self.exp_avg[place].value() * beta1 + grad * (1 - beta1)
        square = self.exp_avg_sq[place].value() * beta2 + grad * grad * (1 - beta2)
        ops.assign(self.exp_avg[place], mean)
        ops.assign(self.exp_avg_sq[place], square)
        size = rate
        if group["correct_bias"]:
            step = self.counts[place].value()
            size = rate * ops.sqrt(bias(step, beta2)) / bias(step, beta1)
        moved = param.value() - size * mean / (ops.sqrt(square) + group["eps"])
        if group["weight_decay"] > 0:
            moved = moved - moved * (rate * group["weight_decay"])
        ops.assign(param, moved)


def _rising(step: int, warmup: int) -> float:
    return step / max(1, warmup)


def _constant(step: int, *, warmup: int) -> float:
    return _rising(step, warmup) if step < warmup else 1.0


def _linear(step: int, *, warmup: int, total: int) -> float:
    if step < warmup:
        return _rising(step, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


def _cosine(step: int, *, warmup: int, total: int, cycles: float) -> float:
    if step < warmup:
        return _rising(step, warmup)
    share = (step - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1 + math.cos(math.pi * cycles * 2 * share)))


def _restarted(step: int, *, warmup: int, total: int, cycles: int) -> float:
    if step < warmup:
        return _rising(step, warmup)
    share = (step - warmup) / max(1, total - warmup)
    if share >= 1:
        return 0.0
    return max(0.0, 0.5 * (1 + math.cos(math.pi * ((cycles * share) % 1))))


def get_constant_schedule(optimizer: Any, last_epoch: int = -1) -> LambdaLR:
    """Return transformers.get_constant_schedule."""
    return LambdaLR(optimizer, lambda _: 1.0, last_epoch)


def get_constant_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """Return transformers.get_constant_schedule_with_warmup."""
    return LambdaLR(optimizer, partial(_constant, warmup=num_warmup_steps), last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """Return transformers.get_linear_schedule_with_warmup."""
    factor = partial(_linear, warmup=num_warmup_steps, total=num_training_steps)
    return LambdaLR(optimizer, factor, last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return transformers.get_cosine_schedule_with_warmup."""
    steps = {"warmup": num_warmup_steps, "total": num_training_steps}
    return LambdaLR(optimizer, partial(_cosine, **steps, cycles=num_cycles), last_epoch)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: int = 1,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return transformers.get_cosine_with_hard_restarts_schedule_with_warmup."""
    steps = {"warmup": num_warmup_steps, "total": num_training_steps}
    return LambdaLR(optimizer, partial(_restarted, **steps, cycles=num_cycles), last_epoch)


# --- timm -----------------------------------------------------------------------------------------


class LabelSmoothingCrossEntropy(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """timm.loss.LabelSmoothingCrossEntropy."""

    def __init__(self, smoothing: float = 0.1) -> None:
        super().__init__()
        self.smoothing, self.confidence = smoothing, 1.0 - smoothing

    def construct(self, x: Any, target: Any) -> Any:
        """Return the mean loss of scores and labels."""
        logs = ops.log_softmax(x, -1)
        hit = -ops.gather_elements(logs, -1, target.expand_dims(1)).squeeze(1)
        return (self.confidence * hit - self.smoothing * logs.mean(-1)).mean()


class SoftTargetCrossEntropy(nn.Cell):  # type: ignore[misc]
    """timm.loss.SoftTargetCrossEntropy."""

    def construct(self, x: Any, target: Any) -> Any:
        """Return the mean loss of scores and a share for each class."""
        return (-target * ops.log_softmax(x, -1)).sum(-1).mean()


def drop_path(
    x: Any, drop_prob: float = 0.0, training: bool = False, scale_by_keep: bool = True
) -> Any:
    """Return timm.layers.drop_path: whole samples are zero; other random numbers."""
    if drop_prob == 0.0 or not training:
        return x
    keep = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    mask = (ops.rand(*shape) < keep).astype(x.dtype)
    return x * (mask / keep if keep > 0.0 and scale_by_keep else mask)


class DropPath(nn.Cell):  # type: ignore[misc]
    """timm.layers.DropPath."""

    def __init__(self, drop_prob: float = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep

    def construct(self, x: Any) -> Any:
        """Drop whole samples in training."""
        return drop_path(x, self.drop_prob, self.training, self.scale_by_keep)


def to_2tuple(x: Any) -> tuple[Any, ...]:
    """Return timm.layers.to_2tuple."""
    return tuple(x) if isinstance(x, Iterable) and not isinstance(x, str) else tuple(repeat(x, 2))


class AverageMeter:
    """timm.utils.AverageMeter."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.val: Any = 0
        self.avg: Any = 0
        self.sum: Any = 0
        self.count: Any = 0

    def update(self, val: Any, n: int = 1) -> None:
        """Add ``val``, ``n`` times."""
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output: Any, target: Any, topk: tuple[int, ...] = (1,)) -> list[Any]:
    """Return timm.utils.accuracy: per cent of rows whose label is among the best ``k``."""
    most = min(max(topk), output.shape[1])
    best = ops.topk(output, most)[1].swapaxes(0, 1)
    hit = (best == target.reshape((1, -1)).astype(best.dtype)).astype(ms.float32)
    rows = target.shape[0]
    return [hit[: min(k, most)].reshape((-1,)).sum(0) * 100.0 / rows for k in topk]


# --- counting -------------------------------------------------------------------------------------


def _count(model: Any) -> int:
    return sum(int(param.size) for param in model.get_parameters() if param.requires_grad)


def profile(model: Any, inputs: Any = (), *, ret_layer_info: bool = False, **_: Any) -> Any:
    """Return what thop.profile does: operations, which nobody counts here, and parameters."""
    del inputs
    found = (math.nan, float(_count(model)))
    return (*found, {}) if ret_layer_info else found


_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


def clever_format(nums: Any, format: str = "%.2f") -> Any:
    """Return thop.clever_format: numbers as texts with their units."""
    listed = list(nums) if isinstance(nums, Iterable) else [nums]
    found = []
    for num in listed:
        size, unit = next(((s, u) for s, u in _UNITS if num > s), (1.0, "B"))
        found.append(format % (num / size) + unit)
    return found[0] if len(found) == 1 else tuple(found)


def summary(model: Any, input_size: Any = None, batch_size: int = -1, device: Any = None) -> None:
    """Print a network and how many parameters it has, where torchsummary prints a table."""
    del input_size, batch_size, device
    print(model)  # noqa: T201  # what the package does
    print(f"Trainable params: {_count(model):,}")  # noqa: T201


# --- warmup_scheduler -----------------------------------------------------------------------------


class GradualWarmupScheduler(LRScheduler):
    """Rates that grow until ``total_epoch``, then those of another schedule."""

    def __init__(
        self, optimizer: Any, multiplier: float, total_epoch: int, after_scheduler: Any = None
    ) -> None:
        if multiplier < 1:
            msg = f"`multiplier` must be at least 1, got {multiplier}"
            raise ValueError(msg)
        if hasattr(after_scheduler, "mode"):
            msg = "`after_scheduler` must go by epochs, ReduceLROnPlateau goes by what it is told"
            raise TypeError(msg)
        self.multiplier, self.total_epoch = multiplier, total_epoch
        self.after_scheduler, self.finished = after_scheduler, False
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Return the rates of ``last_epoch``."""
        if self.last_epoch <= self.total_epoch:
            share = self.last_epoch / self.total_epoch
            grown = share if self.multiplier == 1 else (self.multiplier - 1) * share + 1
            return [base * grown for base in self.base_lrs]
        whole = [base * self.multiplier for base in self.base_lrs]
        if not self.after_scheduler:
            return whole
        if not self.finished:
            self.after_scheduler.base_lrs = whole
            self.finished = True
        return list(self.after_scheduler.get_lr())

    def step(self, epoch: Any = None, metrics: Any = None) -> None:
        """Set the rates of the next epoch; behind the warm-up the other schedule does."""
        del metrics
        if self.finished and self.after_scheduler:
            self.after_scheduler.step(None if epoch is None else epoch - self.total_epoch)
        else:
            super().step(epoch)
