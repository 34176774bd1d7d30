"""Schedules that move momentum against the learning rate.

Source: the formulas of torch/optim/lr_scheduler.py, torch 2.13.0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Tensor
from mindspore.experimental import optim

from mpcore_port_runtime.rates import LRScheduler, each, set_lr

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CyclicLR", "OneCycleLR"]


def _check_momentum(optimizer: Any) -> None:
    if not {"momentum", "betas"} & set(optimizer.defaults):
        name = type(optimizer).__name__
        msg = f"`cycle_momentum` must be False: {name} has neither momentum nor betas"
        raise ValueError(msg)


def _set_momentum(optimizer: Any, group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    elif isinstance(optimizer, optim.SGD):
        # a number would have MindSpore compile the step anew each time
        group["momentum"] = Tensor(value, ms.float32)
    else:
        group["momentum"] = value


class OneCycleLR(LRScheduler):
    """Up to ``max_lr``, then down to almost nothing; momentum the other way round.

    Two phases, or three with ``three_phase``; each ends at a fraction of a step.
    """

    def __init__(
        self,
        optimizer: Any,
        max_lr: Any,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.85,
        max_momentum: Any = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.total_steps = _total(total_steps, epochs, steps_per_epoch)
        if anneal_strategy not in ("cos", "linear"):
            msg = f"`anneal_strategy` must be 'cos' or 'linear', got {anneal_strategy!r}"
            raise ValueError(msg)
        if not 0 <= pct_start <= 1:
            msg = f"`pct_start` must be in [0, 1], got {pct_start!r}"
            raise ValueError(msg)
        self.cosine, self.cycle_momentum = anneal_strategy == "cos", cycle_momentum
        first, total = pct_start * self.total_steps - 1, self.total_steps - 1
        ends = (
            [first, 2 * pct_start * self.total_steps - 2, total] if three_phase else [first, total]
        )
        self.ends = [float(end) for end in ends]
        if last_epoch == -1:
            for group, peak in zip(
                optimizer.param_groups, each("max_lr", optimizer, max_lr), strict=True
            ):
                low = peak / div_factor
                group |= {"initial_lr": low, "max_lr": peak, "min_lr": low / final_div_factor}
        if cycle_momentum:
            _check_momentum(optimizer)
            self.momenta = list(
                zip(
                    each("base_momentum", optimizer, base_momentum),
                    each("max_momentum", optimizer, max_momentum),
                    strict=True,
                )
            )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rates of ``last_epoch``, and set the momenta."""
        if self.last_epoch > self.total_steps:
            msg = f"`step` must be called {self.total_steps} times at most"
            raise ValueError(msg)
        phase = next((i for i, end in enumerate(self.ends) if self.last_epoch <= end), -1)
        phase %= len(self.ends)
        start = self.ends[phase - 1] if phase else 0.0
        share = (self.last_epoch - start) / (self.ends[phase] - start)
        rates = []
        for number, group in enumerate(self.optimizer.param_groups):
            way = [group["initial_lr"], group["max_lr"], group["min_lr"]]
            if len(self.ends) == 3:
                way.insert(2, group["initial_lr"])
            rates.append(self._between(way[phase], way[phase + 1], share))
            if self.cycle_momentum:
                low, high = self.momenta[number]
                momenta = [high, low, high, high]
                value = self._between(momenta[phase], momenta[phase + 1], share)
                _set_momentum(self.optimizer, group, value)
        return rates

    def _between(self, start: float, end: float, share: float) -> float:
        if self.cosine:
            return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
        return start + (end - start) * share


def _total(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is None and epochs is not None and steps_per_epoch is not None:
        total_steps = epochs * steps_per_epoch
    if not isinstance(total_steps, int) or total_steps < 1:
        msg = (
            "`total_steps` must be a whole number >= 1, or `epochs` and `steps_per_epoch` be "
            f"given, got {total_steps!r}, {epochs!r}, {steps_per_epoch!r}"
        )
        raise ValueError(msg)
    return total_steps


class CyclicLR(LRScheduler):
    """Up and down between two rates, over and over; momentum the other way round."""

    def __init__(
        self,
        optimizer: Any,
        base_lr: Any,
        max_lr: Any,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.8,
        max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            msg = f"`mode` must be 'triangular', 'triangular2' or 'exp_range', got {mode!r}"
            raise ValueError(msg)
        lows = each("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, low in zip(optimizer.param_groups, lows, strict=True):
                set_lr(group, low)
        self.max_lrs = each("max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self.scale_fn, self.scale_mode = scale_fn, scale_mode
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            _check_momentum(optimizer)
            self.base_momentums = each("base_momentum", optimizer, base_momentum)
            self.max_momentums = each("max_momentum", optimizer, max_momentum)
        self.lows = lows
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def _height(self) -> float:
        """Return where between the rates ``last_epoch`` is, in [0, 1]."""
        turns = self.last_epoch / self.total_size
        cycle = math.floor(1 + turns)
        place = 1 + turns - cycle
        ratio = self.step_ratio
        height = place / ratio if place <= ratio else (place - 1) / (ratio - 1)
        if self.scale_fn is not None:
            return height * self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.mode == "exp_range":
            return float(height * self.gamma**self.last_epoch)
        return height / 2.0 ** (cycle - 1) if self.mode == "triangular2" else height

    def get_lr(self) -> list[float]:
        """Return the rates of ``last_epoch``, and set the momenta."""
        height = self._height()
        if self.cycle_momentum:
            both = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, both, strict=True):
                _set_momentum(self.optimizer, group, high - (high - low) * height)
        both = zip(self.lows, self.max_lrs, strict=True)
        return [low + (high - low) * height for low, high in both]
