"""Schedules by their names, as transformers and diffusers make them, and two more of theirs.

Sources: transformers 4.44.2 and 5.23.0 ``optimization.py``, diffusers 0.42.1 ``optimization.py``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mpcore_port_runtime import others
from mpcore_port_runtime.schedules import LambdaLR
from mpcore_port_runtime.sequences import ReduceLROnPlateau

__all__ = [
    "diffusers_scheduler",
    "get_inverse_sqrt_schedule",
    "get_polynomial_decay_schedule_with_warmup",
    "transformers_scheduler",
]


def _polynomial(
    step: int, *, warmup: int, total: int, end: float, power: float, first: float
) -> float:
    if step < warmup:
        return step / max(1, warmup)
    if step > total:
        return end / first
    left = 1 - (step - warmup) / (total - warmup)
    return float(((first - end) * left**power + end) / first)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return transformers.get_polynomial_decay_schedule_with_warmup.

    Raises:
        ValueError: the last rate is not below the first.
    """
    first = float(optimizer.defaults["lr"])
    if not first > lr_end:
        msg = f"lr_end ({lr_end}) must be smaller than initial lr ({first})"
        raise ValueError(msg)
    steps = {"warmup": num_warmup_steps, "total": num_training_steps}
    factor = partial(_polynomial, **steps, end=lr_end, power=power, first=first)
    return LambdaLR(optimizer, factor, last_epoch)


def _inverse(step: int, *, warmup: int, scale: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return 1.0 / math.sqrt((step + scale - warmup) / scale)


def get_inverse_sqrt_schedule(
    optimizer: Any, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Return transformers.get_inverse_sqrt_schedule."""
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    factor = partial(_inverse, warmup=num_warmup_steps, scale=scale)
    return LambdaLR(optimizer, factor, last_epoch)


_WHOLE = {
    "linear": others.get_linear_schedule_with_warmup,
    "cosine": others.get_cosine_schedule_with_warmup,
    "cosine_with_restarts": others.get_cosine_with_hard_restarts_schedule_with_warmup,
    "polynomial": get_polynomial_decay_schedule_with_warmup,
}
"""By name, those that have to know how many steps there are."""


def _check(name: Any, **needed: Any) -> None:
    for word, value in needed.items():
        if value is None:
            msg = f"{name} requires `{word}`, please provide that argument."
            raise ValueError(msg)


def _named(name: Any) -> str:
    return str(getattr(name, "value", name)).lower()


def transformers_scheduler(
    name: Any,
    optimizer: Any,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Return transformers.get_scheduler.

    Raises:
        NotImplementedError: the schedule of that name is not ported.
        ValueError: a number of steps is not given.
    """
    kind, more = _named(name), scheduler_specific_kwargs or {}
    if kind == "constant":
        return others.get_constant_schedule(optimizer, **more)
    if kind == "reduce_lr_on_plateau":
        return ReduceLROnPlateau(optimizer, **more)
    _check(kind, num_warmup_steps=num_warmup_steps)
    if kind == "constant_with_warmup":
        return others.get_constant_schedule_with_warmup(optimizer, num_warmup_steps)  # type: ignore[arg-type]  # checked
    if kind == "inverse_sqrt":
        return get_inverse_sqrt_schedule(optimizer, num_warmup_steps, **more)  # type: ignore[arg-type]
    return _of_all(kind, optimizer, num_warmup_steps, num_training_steps, more)


def diffusers_scheduler(
    name: Any,
    optimizer: Any,
    step_rules: str | None = None,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    num_cycles: int = 1,
    power: float = 1.0,
    last_epoch: int = -1,
) -> Any:
    """Return diffusers.optimization.get_scheduler.

    Raises:
        NotImplementedError: the schedule of that name is not ported.
        ValueError: a number of steps is not given.
    """
    del step_rules
    kind = _named(name)
    if kind == "constant":
        return others.get_constant_schedule(optimizer, last_epoch)
    _check(kind, num_warmup_steps=num_warmup_steps)
    if kind == "constant_with_warmup":
        return others.get_constant_schedule_with_warmup(optimizer, num_warmup_steps, last_epoch)  # type: ignore[arg-type]
    own: dict[str, dict[str, Any]] = {
        "cosine_with_restarts": {"num_cycles": num_cycles},
        "polynomial": {"power": power},
    }
    more = {**own.get(kind, {}), "last_epoch": last_epoch}
    return _of_all(kind, optimizer, num_warmup_steps, num_training_steps, more)


def _of_all(kind: str, optimizer: Any, warmup: Any, total: Any, more: dict[str, Any]) -> Any:
    if kind not in _WHOLE:
        msg = f"the schedule {kind!r} is not ported: take one of {', '.join(_WHOLE)}"
        raise NotImplementedError(msg)
    _check(kind, num_training_steps=total)
    make: Any = _WHOLE[kind]
    return make(optimizer, warmup, total, **more)
