"""Learning rates by the number of the epoch.

Source: the formulas of torch/optim/lr_scheduler.py, torch 2.13.0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from mpcore_port_runtime.rates import LRScheduler, each, rate_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "StepLR",
]


class LambdaLR(LRScheduler):
    """The first rate times a function of the epoch."""

    def __init__(self, optimizer: Any, lr_lambda: Any, last_epoch: int = -1) -> None:
        self.lr_lambdas = each("lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rates of ``last_epoch``."""
        both = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in both]


class MultiplicativeLR(LRScheduler):
    """The rate before times a function of the epoch."""

    def __init__(self, optimizer: Any, lr_lambda: Any, last_epoch: int = -1) -> None:
        self.lr_lambdas: list[Callable[[int], float]] = each("lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rates of ``last_epoch``."""
        both = zip(self.optimizer.param_groups, self.lr_lambdas, strict=True)
        first = self._is_initial
        return [rate_of(g) * (1.0 if first else function(self.last_epoch)) for g, function in both]


class StepLR(LRScheduler):
    """Times ``gamma`` every ``step_size`` epochs."""

    def __init__(
        self, optimizer: Any, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def _next(self, rate: float, base: float) -> float:
        due = self.last_epoch != 0 and self.last_epoch % self.step_size == 0
        return rate * self.gamma if due else rate

    def _rate(self, base: float) -> float:
        return float(base * self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(LRScheduler):
    """Times ``gamma`` at each of the ``milestones``."""

    _resumes = False  # torch's moves at a milestone even then

    def __init__(
        self, optimizer: Any, milestones: Any, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def _next(self, rate: float, base: float) -> float:
        return float(rate * self.gamma ** self.milestones.count(self.last_epoch))

    def _rate(self, base: float) -> float:
        return float(base * self.gamma ** bisect_right(self.milestones, self.last_epoch))


class ConstantLR(LRScheduler):
    """Times ``factor`` until epoch ``total_iters``."""

    def __init__(
        self,
        optimizer: Any,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _next(self, rate: float, base: float) -> float:
        if self.last_epoch == 0:
            return rate * self.factor
        return rate / self.factor if self.last_epoch == self.total_iters else rate

    def _rate(self, base: float) -> float:
        return base if self.last_epoch >= self.total_iters else base * self.factor


class LinearLR(LRScheduler):
    """From ``start_factor`` to ``end_factor`` times the first rate, in ``total_iters`` epochs."""

    def __init__(
        self,
        optimizer: Any,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: int) -> float:
        share = min(epoch, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share

    def _next(self, rate: float, base: float) -> float:
        if self.last_epoch == 0:
            return rate * self.start_factor
        if self.last_epoch > self.total_iters:
            return rate
        return rate * self._factor(self.last_epoch) / self._factor(self.last_epoch - 1)

    def _rate(self, base: float) -> float:
        return base * self._factor(self.last_epoch)


class ExponentialLR(LRScheduler):
    """Times ``gamma`` every epoch."""

    def __init__(self, optimizer: Any, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _next(self, rate: float, base: float) -> float:
        return rate if self._is_initial else rate * self.gamma

    def _rate(self, base: float) -> float:
        return float(base * self.gamma**self.last_epoch)


class PolynomialLR(LRScheduler):
    """Down to 0 in ``total_iters`` epochs, by a power of what is left."""

    def __init__(
        self, optimizer: Any, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def _next(self, rate: float, base: float) -> float:
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return rate
        left = self.total_iters - self.last_epoch
        return float(rate * (left / (left + 1)) ** self.power)

    def _rate(self, base: float) -> float:
        left = 1 - min(self.last_epoch, self.total_iters) / self.total_iters
        return float(base * left**self.power)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate to ``eta_min`` in ``T_max`` epochs, and back."""

    def __init__(
        self,
        optimizer: Any,
        T_max: int,  # noqa: N803  # torch's name
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: float) -> float:
        return 1 + math.cos(math.pi * epoch / self.T_max)

    def _next(self, rate: float, base: float) -> float:
        if self._is_initial:
            return rate
        if self._step_count == 1 and self.last_epoch > 0:
            return self._rate(base)
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            return rate + (base - self.eta_min) * (2 - self._height(1)) / 2
        ratio = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return ratio * (rate - self.eta_min) + self.eta_min

    def _rate(self, base: float) -> float:
        return self.eta_min + (base - self.eta_min) * self._height(self.last_epoch) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine, over and over, each ``T_mult`` times as long as the one before."""

    def __init__(
        self,
        optimizer: Any,
        T_0: int,  # noqa: N803  # torch's name
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                msg = f"`{name}` must be a whole number >= 1, got {value!r}"
                raise ValueError(msg)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.T_i = T_0
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rates at ``T_cur`` of a cosine of ``T_i`` epochs."""
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch: Any = None) -> None:
        """Go to the next epoch, or to ``epoch``, which may be a fraction."""
        self._step_count += 1
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        else:
            epoch = 0 if epoch is None else epoch
            self._find(epoch)
        self.last_epoch = math.floor(epoch)
        self._write(self.get_lr())

    def _find(self, epoch: float) -> None:
        self.T_cur, self.T_i = epoch, self.T_0
        while self.T_cur >= self.T_i:
            self.T_cur, self.T_i = self.T_cur - self.T_i, self.T_i * self.T_mult
