"""Learning rates in double precision, and what schedules of them have in common.

MindSpore's own compute in float32 from the rate before, and drift: CosineAnnealingLR by 1.4e-5
of the rate in 100 steps (mindspore 2.10.0). Their states hold no number of epochs either.

Source: torch/optim/lr_scheduler.py, torch 2.13.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Group", "LRScheduler", "set_lr"]

_EXACT = "exact_lr"


class Group(dict):  # type: ignore[type-arg]  # of everything
    """One of an optimizer's ``param_groups``; its rate is a float that may be set in any way.

    ``group["lr"] = x``, ``*=``, ``update``, ``|=`` reach the Parameter that the step reads.
    """

    def __init__(self, values: dict[str, Any], rate: float) -> None:
        super().__init__(values)
        held = values["lr"]
        if isinstance(held, ms.Parameter):
            self.parameter = held
            shown = float(held)
            self.rate = (
                rate if np.float32(rate) == np.float32(shown) else float(str(held.asnumpy()))
            )

    def __getitem__(self, key: Any) -> Any:
        """Return the rate as it was set, or what else the group has."""
        return rate_of(self) if key == "lr" else super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the rate in place, or anything else."""
        if key == "lr":
            set_lr(self, value)
        else:
            super().__setitem__(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return what ``[]`` returns, if it is there."""
        return self[key] if key in self else default  # noqa: SIM401  # get is what this is

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several values."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> Group:  # type: ignore[misc]
        """Set several values."""
        self.update(other)
        return self

    def items(self) -> Any:
        """Return the pairs, with the rate as a number."""
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        """Return the values, with the rate as a number."""
        return [self[key] for key in self]


def has_groups(holder: Any) -> bool:
    """Return whether an object is an optimizer: a network may have a method of that name."""
    groups = asked(holder, "param_groups")
    return groups is not None and not callable(groups)


def asked(holder: Any, name: str) -> Any:
    """Return an attribute, or None: of settings whose ``__getattr__`` is a dictionary's as well."""
    try:
        return getattr(holder, name, None)
    except (KeyError, IndexError):
        return None


def rate_of(group: Any) -> float:
    """Return the learning rate of a group: what was set, not what float32 made of it."""
    if isinstance(group, Group):
        held = np.float32(float(group.parameter))
        return group.rate if np.float32(group.rate) == held else float(str(held))
    if not isinstance(group["lr"], ms.Parameter):  # of an optimizer of the script's own
        return float(group["lr"])
    held, kept = np.float32(float(group["lr"])), group.get(_EXACT)
    return float(kept if kept is not None and np.float32(kept) == held else str(held))


def set_lr(group: Any, value: Any) -> None:
    """Set the learning rate of one of an optimizer's ``param_groups``."""
    rate = float(value)
    if isinstance(group, Group):
        group.rate = rate
        ops.assign(group.parameter, Tensor(rate, ms.float32))
    elif not isinstance(group["lr"], ms.Parameter):
        group["lr"] = rate
    else:
        group[_EXACT] = rate
        ops.assign(group["lr"], Tensor(rate, ms.float32))


def each(name: str, optimizer: Any, value: Any) -> list[Any]:
    """Return a value for each group of an optimizer."""
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        msg = f"`{name}` must have a value for each of {count} groups, got {len(value)}"
        raise ValueError(msg)
    return list(value)


class LRScheduler:
    """What subclasses give ``get_lr``; torch's names, and rates that are Python floats.

    Attributes:
        optimizer: of mindspore.experimental.optim.
        base_lrs: the rates that it began with, by group.
        last_epoch: how often ``step`` ran, from 0.
    """

    _resumes = True  # one that goes on at a later epoch begins with the rates that it finds

    def __init__(self, optimizer: Any, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer, last_epoch
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch != -1 and "initial_lr" not in group:
                msg = f"`last_epoch` must be -1: group {number} of the optimizer has no initial_lr"
                raise KeyError(msg)
            group.setdefault("initial_lr", rate_of(group))
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.begin()

    def begin(self) -> None:
        """Take the first step, which sets the first rates."""
        self._step_count = 0
        self._is_initial = True
        self.step()
        self._is_initial = False

    def step(self, epoch: Any = None) -> None:
        """Set the rates of the next epoch, or of ``epoch``."""
        self._step_count += 1
        self.move(epoch)

    def move(self, epoch: Any = None) -> None:
        """Set rates without counting a step."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._write(self.get_lr() if epoch is None else self.at_once())

    def _write(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_lr(group, rate)
        self._last_lr = [rate_of(group) for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float]:
        """Return the rates of ``last_epoch`` from those of the one before."""
        if self._is_initial and self.last_epoch != 0 and self._resumes:
            return [rate_of(group) for group in self.optimizer.param_groups]
        both = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        return [self._next(rate_of(group), base) for group, base in both]

    def at_once(self) -> list[float]:
        """Return the rates of ``last_epoch`` from the first ones."""
        if type(self)._rate is LRScheduler._rate:
            return self.get_lr()
        return [self._rate(base) for base in self.base_lrs]

    def _next(self, rate: float, base: float) -> float:
        raise NotImplementedError

    def _rate(self, base: float) -> float:
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Return the rates that were set last."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, words and lists of them; functions are not saved."""
        plain = (bool, int, float, str, type(None))
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, plain)
            or (isinstance(value, list) and all(isinstance(item, plain) for item in value))
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned; the rates themselves are the optimizer's."""
        vars(self).update(state_dict)
