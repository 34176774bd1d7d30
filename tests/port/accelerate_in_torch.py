"""What accelerate does with a loop on one CUDA device, written out in torch for a CPU.

The oracle of the ports of its loop. Source: src/accelerate/accelerator.py, optimizer.py,
scheduler.py and data_loader.py, accelerate 1.15.0; its own scripts were compared with it.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

__all__ = ["install"]


class Handler:
    def __init__(self, **given: Any) -> None:
        self.given = given


class GradScalerKwargs(Handler):
    pass


class DistributedDataParallelKwargs(Handler):
    pass


class Accelerator:
    is_main_process = is_local_main_process = True
    num_processes, process_index = 1, 0
    device = torch.device("cpu")

    def __init__(
        self,
        *,
        split_batches: bool = False,
        mixed_precision: str = "no",
        gradient_accumulation_steps: int = 1,
        log_with: Any = None,
        kwargs_handlers: Any = (),
        step_scheduler_with_optimizer: bool = True,
    ) -> None:
        settings = [one.given for one in kwargs_handlers if isinstance(one, GradScalerKwargs)]
        half = mixed_precision == "fp16"
        self.scaler = torch.amp.GradScaler("cpu", **dict(*settings)) if half else None
        self.mixed_precision, self.steps = mixed_precision, gradient_accumulation_steps
        self.with_optimizer, self.log_with = step_scheduler_with_optimizer, log_with
        self.count, self.sync_gradients = 0, True
        self.optimizers: list[Any] = []
        self.passes: list[Loader] = []  # over loaders; one that was left stays

    @property
    def at_end(self) -> bool:
        return bool(self.passes) and self.passes[-1].at_end

    def prepare(self, *given: Any) -> Any:
        once = [self._first(one) for one in given]
        schedules = torch.optim.lr_scheduler.LRScheduler
        made = [Schedule(self, one) if isinstance(one, schedules) else one for one in once]
        return made[0] if len(made) == 1 else tuple(made)

    def _first(self, one: Any) -> Any:
        if isinstance(one, torch.utils.data.DataLoader):
            return Loader(self, one)
        if isinstance(one, torch.optim.Optimizer):
            self.optimizers.append(Optimizer(self, one))
            return self.optimizers[-1]
        if isinstance(one, torch.nn.Module) and self.mixed_precision != "no":
            inner = one.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                with self.autocast():
                    made = inner(*args, **kwargs)
                return made.float()

            one.forward = forward
        return one

    def autocast(self) -> Any:
        if self.mixed_precision == "no":
            return contextlib.nullcontext()
        half = torch.float16 if self.mixed_precision == "fp16" else torch.bfloat16
        return torch.autocast("cpu", dtype=half)

    @contextlib.contextmanager
    def accumulate(self, *_: Any) -> Iterator[None]:
        self.count = 0 if self.at_end else self.count + 1
        self.sync_gradients = self.at_end or self.count % self.steps == 0
        yield

    def backward(self, loss: Any) -> None:
        loss = loss / self.steps
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def _unscale(self) -> None:
        for one in self.optimizers if self.scaler is not None else ():
            self.scaler.unscale_(one.inner)

    def clip_grad_norm_(self, parameters: Any, limit: float) -> Any:
        self._unscale()
        return torch.nn.utils.clip_grad_norm_(parameters, limit)

    def clip_grad_value_(self, parameters: Any, limit: float) -> None:
        self._unscale()
        torch.nn.utils.clip_grad_value_(parameters, limit)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        return any(one.skipped for one in self.optimizers)

    def gather(self, value: Any) -> Any:
        return value

    def gather_for_metrics(self, value: Any) -> Any:
        rest = self.passes[-1].rest if self.at_end else 0
        return value[:rest] if rest > 0 and value.ndim else value

    def reduce(self, value: Any, reduction: str = "sum") -> Any:
        return value.clone()

    def unwrap_model(self, model: Any) -> Any:
        return model

    def get_state_dict(self, model: Any) -> Any:
        return model.state_dict()

    def print(self, *args: Any) -> None:
        print(*args)

    def save(self, value: Any, file: Any) -> None:
        torch.save(value, file)

    def wait_for_everyone(self) -> None:
        pass

    end_training = free_memory = wait_for_everyone


class Optimizer:
    def __init__(self, home: Accelerator, inner: Any) -> None:
        self.home, self.inner, self.optimizer, self.skipped = home, inner, inner, False
        self.param_groups = inner.param_groups

    @property
    def defaults(self) -> Any:
        return self.inner.defaults

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)

    def zero_grad(self) -> None:
        if self.home.sync_gradients:
            self.inner.zero_grad()

    def step(self) -> None:
        if not self.home.sync_gradients:
            return
        if self.home.scaler is None:
            self.inner.step()
            return
        before = self.home.scaler.get_scale()
        self.home.scaler.step(self.inner)
        self.home.scaler.update()
        self.skipped = self.home.scaler.get_scale() < before  # it has overflowed


class Schedule:
    def __init__(self, home: Accelerator, inner: Any) -> None:
        self.home, self.inner = home, inner

    def step(self) -> None:
        follows = self.home.with_optimizer
        skips = not self.home.sync_gradients or self.home.optimizer_step_was_skipped
        total = getattr(self.inner, "total_steps", self.inner._step_count)
        if not (follows and (skips or self.inner._step_count > total)):
            self.inner.step()

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)

    def get_last_lr(self) -> Any:
        return self.inner.get_last_lr()


class Loader:
    def __init__(self, home: Accelerator, inner: Any) -> None:
        self.home, self.inner = home, inner
        self.at_end, self.rest = False, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        self.at_end = False
        self.home.passes.append(self)
        ahead = list(self.inner)
        for place, batch in enumerate(ahead):
            self.at_end = place + 1 == len(ahead)
            full = self.inner.batch_size
            streams = isinstance(self.inner.dataset, torch.utils.data.IterableDataset)
            self.rest = len(batch[0]) if streams else len(self.inner.dataset) % full
            yield batch
        self.home.passes = [one for one in self.home.passes if one is not self]


def set_seed(seed: int) -> None:
    torch.manual_seed(seed)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have scripts import this module as accelerate."""
    here = sys.modules[__name__]
    whole = types.ModuleType("accelerate")
    for name in ("Accelerator", "DistributedDataParallelKwargs", "GradScalerKwargs", "set_seed"):
        setattr(whole, name, getattr(here, name))
    monkeypatch.setitem(sys.modules, "accelerate", whole)
    monkeypatch.setitem(sys.modules, "accelerate.utils", whole)
