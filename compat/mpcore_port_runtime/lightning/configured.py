"""What ``configure_optimizers`` returns, as optimizers and schedules with their settings.

Source: lightning 2.6.6, ``pytorch/core/optimizer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mpcore_port_runtime.rates import has_groups
from mpcore_port_runtime.sequences import ReduceLROnPlateau

__all__: list[str] = []


@dataclass
class Schedule:
    """A schedule, and when it steps."""

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        self.reduce_on_plateau = self.reduce_on_plateau or isinstance(
            self.scheduler, ReduceLROnPlateau
        )
        if self.interval not in ("step", "epoch"):
            msg = f"`interval` must be 'step' or 'epoch', got {self.interval!r}"
            raise ValueError(msg)
        if self.reduce_on_plateau and self.monitor is None:
            msg = "`configure_optimizers` must name a `monitor` beside ReduceLROnPlateau"
            raise ValueError(msg)


def read(made: Any) -> tuple[list[Any], list[Schedule]]:
    """Return all optimizers, and schedules.

    Raises:
        NotImplementedError: it returned what is not ported.
    """
    if made is None:
        return [], []
    if has_groups(made):
        return [made], []
    if isinstance(made, dict):
        return _of_one(made)
    listed = list(made)
    if len(listed) == 2 and isinstance(listed[0], (list, tuple)):
        schedules = [_schedule(one, None) for one in _several(listed[1])]
        return list(listed[0]), schedules
    if listed and all(isinstance(one, dict) for one in listed):
        parts = [_of_one(one) for one in listed]
        return [o for part, _ in parts for o in part], [s for _, part in parts for s in part]
    if listed and all(has_groups(one) for one in listed):
        return listed, []
    msg = f"`configure_optimizers` must return optimizers and schedules, got {made!r}"
    raise NotImplementedError(msg)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _of_one(made: dict[str, Any]) -> tuple[list[Any], list[Schedule]]:
    if "frequency" in made:
        msg = "`frequency` beside an optimizer is not ported: use manual optimization"
        raise NotImplementedError(msg)
    if "lr_scheduler" not in made:
        return [made["optimizer"]], []
    return [made["optimizer"]], [_schedule(made["lr_scheduler"], made.get("monitor"))]


def _schedule(given: Any, monitor: str | None) -> Schedule:
    if not isinstance(given, dict):
        return Schedule(given, monitor=monitor)
    names = {one.name for one in fields(Schedule)}
    return Schedule(**{"monitor": monitor, **{k: v for k, v in given.items() if k in names}})
