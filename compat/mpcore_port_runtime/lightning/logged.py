"""What ``self.log`` is told: values of steps, and their means over an epoch.

Source: lightning 2.6.6, ``trainer/connectors/logger_connector/result.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
from mindspore import Tensor

__all__: list[str] = []

_REDUCED = {"mean": "mean", "avg": "mean", "min": "min", "max": "max", "sum": "sum"}


@dataclass
class Value:
    """One name that a hook logs, and what came together under it."""

    name: str
    on_step: bool
    on_epoch: bool
    prog_bar: bool
    logger: bool
    reduce: str
    last: Any = None
    total: Any = None
    weight: float = 0.0
    metric: Any = None

    def add(self, value: Any, weight: float) -> None:
        """Take one more value, of so many samples."""
        if hasattr(value, "compute"):
            self.metric, self.last = value, getattr(value, "_forward_cache", None)
            return
        self.last = value
        if self.reduce == "mean":
            value = value * weight
        self.weight += weight
        if self.total is None:
            self.total = value
        elif self.reduce in ("mean", "sum"):
            self.total = self.total + value
        elif bool(value < self.total) == (self.reduce == "min"):
            self.total = value

    def whole(self) -> Any:
        """Return what the epoch makes of it."""
        if self.metric is not None:
            return self.metric.compute()
        return self.total / self.weight if self.reduce == "mean" else self.total


@dataclass
class Logged:
    """All that was logged since an epoch began."""

    training: bool
    batch: Any = None
    loader: int | None = None
    values: dict[Any, Value] = field(default_factory=dict)

    def add(self, hook: str, name: str, value: Any, batch_size: int | None, **asked: Any) -> None:
        """Log a value under a name; by default of a step, or of an epoch, as the hook is."""
        on_step, on_epoch = _when(hook, asked.pop("on_step"), asked.pop("on_epoch"))
        if asked.pop("add_dataloader_idx") and self.loader is not None:
            name = f"{name}/dataloader_idx_{self.loader}"
        reduce = _name_of(asked.pop("reduce_fx"))
        kept = self.values.setdefault(
            (hook, name), Value(name, on_step, on_epoch, reduce=reduce, **asked)
        )
        if hasattr(value, "compute"):
            kept.add(value, 1)
            return
        plain = value if isinstance(value, Tensor) else Tensor(float(value), ms.float32)
        if plain.size != 1:
            msg = f"`self.log({name!r}, ...)` must be given one number, got shape {plain.shape}"
            raise ValueError(msg)
        number = plain.astype(ms.float32).reshape(())
        weighs = on_epoch and reduce == "mean"
        size = (
            batch_size if batch_size is not None else (batch_size_of(self.batch) if weighs else 1)
        )
        kept.add(Tensor(number.asnumpy()), float(size))

    def shown(self, *, of_step: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what loggers get and what callbacks read: of the last step, or of the epoch."""
        written, read = {}, {}
        for one in self.values.values():
            value = (one.last if one.on_step else None) if of_step else _of_epoch(one)
            if value is None:
                continue
            forked = one.on_step and one.on_epoch
            name = f"{one.name}_{'step' if of_step else 'epoch'}" if forked else one.name
            if one.logger:
                written[name] = value
            if self.training or not of_step:
                read[one.name] = read[name] = value
        return written, read

    def close(self) -> None:
        """Forget all: an epoch is over."""
        for one in self.values.values():
            if one.metric is not None and one.on_epoch:
                one.metric.reset()
        self.values.clear()


def _of_epoch(one: Value) -> Any:
    return one.whole() if one.on_epoch and (one.metric is not None or one.weight) else None


def _when(hook: str, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
    of_step = hook == "training_step" or hook.startswith(
        ("on_train_batch", "on_before", "on_after")
    )
    step = of_step if on_step is None else on_step
    return step, (not of_step if on_epoch is None else on_epoch)


def _name_of(reduce: Any) -> str:
    name = reduce if isinstance(reduce, str) else getattr(reduce, "__name__", str(reduce))
    if name.lower() not in _REDUCED:
        msg = f"`reduce_fx` must be one of mean, min, max and sum, got {reduce!r}"
        raise NotImplementedError(msg)
    return _REDUCED[name.lower()]


def batch_size_of(batch: Any) -> int:
    """Return the first axis of the first tensor in a batch."""
    return next((size for size in _sizes(batch) if size is not None), 1)


def _sizes(batch: Any) -> Iterator[int | None]:
    if isinstance(batch, Tensor):
        yield batch.shape[0] if batch.ndim else 1
    elif isinstance(batch, str):
        yield len(batch)
    elif isinstance(batch, Mapping):
        yield from _sizes(list(batch.values()))
    elif isinstance(batch, Iterable):
        for one in batch:
            yield from _sizes(one)
    else:
        yield None
