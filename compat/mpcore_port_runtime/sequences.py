"""Schedules of several parts, and those that look at a measure.

Source: torch/optim/lr_scheduler.py, torch 2.13.0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from mpcore_port_runtime.rates import LRScheduler, each, rate_of, set_lr

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ChainedScheduler", "ReduceLROnPlateau", "SequentialLR"]


class _Several(LRScheduler):
    """Schedules of one optimizer."""

    def __init__(self, optimizer: Any, schedulers: Sequence[Any]) -> None:
        wrong = [one for one in schedulers if one.optimizer is not optimizer]
        if not schedulers or wrong:
            msg = f"`schedulers` must be some of one optimizer, got {schedulers!r}"
            raise ValueError(msg)
        self.optimizer, self._schedulers = optimizer, list(schedulers)

    def state_dict(self) -> dict[str, Any]:
        """Return its own state and those of all."""
        return super().state_dict() | {"_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        rest = dict(state_dict)
        for one, state in zip(self._schedulers, rest.pop("_schedulers"), strict=True):
            one.load_state_dict(state)
        super().load_state_dict(rest)


class SequentialLR(_Several):
    """One schedule after the other, changing at the ``milestones``."""

    def __init__(
        self,
        optimizer: Any,
        schedulers: Sequence[Any],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            msg = f"`milestones` must be {len(schedulers) - 1}, got {len(milestones)}"
            raise ValueError(msg)
        self._milestones, self.last_epoch = list(milestones), last_epoch + 1
        for group in optimizer.param_groups:
            set_lr(group, group["initial_lr"])
        _undo(self)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first.begin()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: Any = None) -> None:
        """Take a step of the schedule whose turn it is."""
        del epoch
        self.last_epoch += 1
        turn = bisect_right(self._milestones, self.last_epoch)
        one = self._schedulers[turn]
        if turn > 0 and self._milestones[turn - 1] == self.last_epoch:
            one.move(0)
        else:
            one.step()
        self._last_lr = one.get_last_lr()


def _undo(scheduler: Any) -> None:
    """Take back the first step that each schedule took when it was made."""
    if isinstance(scheduler, _Several):
        for one in scheduler._schedulers:
            _undo(one)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(_Several):
    """Several schedules at once."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Any = None) -> None:
        super().__init__(schedulers[0].optimizer if optimizer is None else optimizer, schedulers)
        self._last_lr = [rate_of(group) for group in self.optimizer.param_groups]

    def step(self, epoch: Any = None) -> None:
        """Take a step of each."""
        del epoch
        for one in self._schedulers:
            one.step()
        self._last_lr = [rate_of(group) for group in self.optimizer.param_groups]


class ReduceLROnPlateau(LRScheduler):
    """Times ``factor`` when a measure has not improved for ``patience`` epochs."""

    def __init__(
        self,
        optimizer: Any,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            msg = f"`factor` must be < 1, got {factor!r}"
            raise ValueError(msg)
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            msg = (
                f"`mode` must be 'min' or 'max' and `threshold_mode` 'rel' or 'abs', "
                f"got {mode!r} and {threshold_mode!r}"
            )
            raise ValueError(msg)
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = each("min_lr", optimizer, min_lr)
        self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.cooldown_counter = self.num_bad_epochs = 0
        self._last_lr = [rate_of(group) for group in optimizer.param_groups]

    def step(  # type: ignore[override]  # as in torch
        self, metrics: Any, epoch: Any = None
    ) -> None:
        """Look at a measure of the epoch that has ended."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        value = float(metrics)
        if self._better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [rate_of(group) for group in self.optimizer.param_groups]

    def _better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            limit = self.best * (1 + sign * self.threshold)
        else:
            limit = self.best + sign * self.threshold
        return sign * value > sign * limit

    def _reduce(self) -> None:
        for group, floor in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            old = rate_of(group)
            new = max(old * self.factor, floor)
            if old - new > self.eps:
                set_lr(group, new)
