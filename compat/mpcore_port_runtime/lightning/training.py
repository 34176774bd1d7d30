"""The epochs of a fit: batches, steps, schedules, validations between them.

Source: lightning 2.6.6, ``loops/fit_loop.py``, ``loops/training_epoch_loop.py``,
``loops/optimization/automatic.py``.
"""

from __future__ import annotations

import math
from typing import Any

from mpcore_port_runtime.lightning import hooks, settings
from mpcore_port_runtime.lightning.logged import Logged
from mpcore_port_runtime.training import loss, over, scaled_by

__all__: list[str] = []


class Fit:
    """Training of a Trainer's module.

    Attributes:
        given: the loader that ``fit`` was handed.
        batches_stepped: how many batches an optimizer has stepped behind.
        next_epoch: which epoch a run that goes on here begins with; None inside of an epoch.
        runs: whether it trains by now.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.given: Any = None
        self.batches_stepped = self.total = 0
        self.next_epoch: int | None = 0
        self.runs = False
        self.batch_idx = -1
        self.is_last = False
        self._loader: Any = None
        self._made_at = 0

    def find_loader(self) -> None:
        """Make the loader, once, or anew where the Trainer was told so."""
        trainer = self.trainer
        every = trainer.asked["reload_dataloaders_every_n_epochs"]
        due = every and trainer.current_epoch - self._made_at >= every
        if self._loader is not None and not due:
            return
        found = trainer.loaders("train", self.given)
        if isinstance(found, (list, tuple, dict)):
            msg = "several loaders of training batches are not ported: make one of them"
            raise NotImplementedError(msg)
        if found is None:
            msg = "`train_dataloader` must be there, or handed to fit"
            raise ValueError(msg)
        self._loader, self._made_at = found, trainer.current_epoch
        trainer.train_dataloader = found
        limit = trainer.asked["limit_train_batches"]
        trainer.num_training_batches = settings.batches_of(found, limit)
        self._check_every = self._interval()

    def _interval(self) -> float:
        """Return behind how many batches a validation runs; inf: behind the last one alone."""
        asked, count = self.trainer.asked["val_check_interval"], self.trainer.num_training_batches
        if isinstance(asked, int):
            if asked > count and self.trainer.check_val_every_n_epoch is not None:
                msg = f"`val_check_interval` ({asked}) must be at most an epoch's {count} batches"
                raise ValueError(msg)
            return asked
        if count == math.inf:
            if asked == 1.0:
                return math.inf
            msg = "`val_check_interval` must be 1.0 or a whole number: the loader has no length"
            raise ValueError(msg)
        return max(1, int(count * asked))

    # --- epochs -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run epochs until there are enough."""
        trainer = self.trainer
        self.find_loader()
        if trainer.num_training_batches == 0 or self._is_done(trainer.current_epoch):
            return
        trainer.stage, trainer.should_stop, self.runs = "train", False, True
        trainer.call("on_train_start")
        while not self._is_done(trainer.current_epoch):
            self.find_loader()
            self._run_epoch()
        trainer.call("on_train_end")
        self.runs = False

    def _is_done(self, epochs: int) -> bool:
        trainer = self.trainer
        if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
            return True
        if trainer.max_epochs != -1 and epochs >= trainer.max_epochs:
            return True
        return bool(trainer.should_stop and self._may_stop(epochs))

    def _may_stop(self, epochs: int) -> bool:
        trainer = self.trainer
        enough = not trainer.min_epochs or epochs >= trainer.min_epochs
        return enough and (not trainer.min_steps or trainer.global_step >= trainer.min_steps)

    def _run_epoch(self) -> None:
        trainer = self.trainer
        _tell_epoch(self._loader, trainer.current_epoch)
        self.next_epoch = None
        trainer.logged = Logged(training=True)
        trainer.call("on_train_epoch_start")
        self._outputs: list[Any] = []
        self._run_batches()
        self.next_epoch = trainer.current_epoch + 1 if self._at_end() else None
        self._end_epoch()
        trainer.current_epoch += 1

    def _end_epoch(self) -> None:
        trainer = self.trainer
        if hasattr(trainer.lightning_module, "training_epoch_end"):
            trainer.call_module("training_epoch_end", self._outputs)
        trainer.callback_metrics.update(trainer.logged.shown(of_step=False)[1])
        trainer.call_callbacks("on_train_epoch_end", saving=False)
        trainer.call_module("on_train_epoch_end")
        trainer.callback_metrics.update(trainer.logged.shown(of_step=False)[1])
        trainer.call_callbacks("on_train_epoch_end", saving=True)
        if self._at_end():
            self._schedule("epoch", plateau=True)
        written, _ = trainer.logged.shown(of_step=False)
        trainer.publish(written)
        trainer.logged.close()

    # --- batches ----------------------------------------------------------------------------

    def _run_batches(self) -> None:
        trainer = self.trainer
        self.batch_idx, self.is_last = -1, False
        pairs = _with_last(self._loader, trainer.num_training_batches)
        for batch, is_last in pairs:
            self.is_last = is_last
            self.batch_idx += 1
            self.total += 1
            trainer.logged.batch = trainer.moved(batch)
            if not self._run_batch(trainer.logged.batch):
                break
            self._look()
            if not self._steps_on():
                break

    def _steps_on(self) -> bool:
        trainer = self.trainer
        if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
            return False
        return not (trainer.should_stop and self._may_stop(trainer.current_epoch))

    def _run_batch(self, batch: Any) -> bool:
        """Train on a batch; return False where a hook ends the epoch."""
        trainer, number = self.trainer, self.batch_idx
        trainer.call_callbacks("on_train_batch_start", batch, number)
        ends = _asked(trainer, "on_train_batch_start", batch, number) == -1
        if ends:
            self.is_last, found = True, None
        else:
            found = self._optimize(batch) if trainer.is_automatic else self._step(batch)
        self._schedule("step", plateau=False)
        if self._at_end():
            self._schedule("epoch", plateau=False)
        if ends:
            return False
        self._keep(found)
        trainer.call_callbacks("on_train_batch_end", found, batch, number)
        _asked(trainer, "on_train_batch_end", found, batch, number)
        written, read = trainer.logged.shown(of_step=True)
        trainer.callback_metrics.update(read)
        due = (self.batches_stepped + 1) % max(trainer.log_every_n_steps or 1, 1) == 0
        trainer.publish(written, write=due)
        return True

    def _keep(self, found: Any) -> None:
        if hasattr(self.trainer.lightning_module, "training_epoch_end"):
            plain = found if isinstance(found, dict) else {"loss": found}
            self._outputs.append(plain)

    def _look(self) -> None:
        """Validate where it is time; move schedules that go by a number."""
        trainer = self.trainer
        if self.validates_next():
            trainer.validate_inside()
        self._schedule("step", plateau=True)
        if not self._gathers():
            self.batches_stepped += 1

    def validates_next(self) -> bool:
        """Return whether a validation runs behind this batch."""
        trainer, every = self.trainer, self.trainer.check_val_every_n_epoch
        if not trainer.has_validation(trainer.val_dataloaders):
            return False
        if every is not None and (trainer.current_epoch + 1) % every:
            return False
        if trainer.should_stop and self._may_stop(trainer.current_epoch):
            return True
        if self._check_every == math.inf:
            return self.is_last
        seen = self.batch_idx + 1 if every is not None else self.total
        return seen % self._check_every == 0

    def _at_end(self) -> bool:
        return self.is_last or self.batch_idx + 1 == self.trainer.num_training_batches

    def _gathers(self) -> bool:
        """Return whether gradients of this batch wait for those of the next."""
        return (
            bool((self.batch_idx + 1) % self.trainer.accumulate_grad_batches) and not self._at_end()
        )

    # --- a step -----------------------------------------------------------------------------

    def _step(self, batch: Any) -> Any:
        """Run the module's training step."""
        trainer = self.trainer
        step = trainer.lightning_module.training_step
        given = (batch, self.batch_idx) if hooks.takes(step, 2) else (batch,)
        with trainer.region():
            found = trainer.call_module("training_step", *given)
        if hasattr(trainer.lightning_module, "training_step_end"):
            found = trainer.call_module("training_step_end", found)
        return found

    def _optimize(self, batch: Any) -> Any:
        trainer = self.trainer
        made: list[Any] = []

        def closure() -> Any:
            made.append(self._pass(batch))
            return made[-1][0]

        if self._gathers():
            closure()
        else:
            optimizer = vars(trainer.lightning_module)["_mpcore_optimizers"][0]
            number = trainer.current_epoch
            trainer.call_module("optimizer_step", number, self.batch_idx, optimizer, closure)
        if not made:
            msg = "`optimizer_step` must call its closure, or hand it to the optimizer's step"
            raise RuntimeError(msg)
        return made[-1][1]

    def _pass(self, batch: Any) -> tuple[Any, Any]:
        """Run forward and backward pass; return the loss, and what the step returned."""
        trainer = self.trainer
        held: list[Any] = []

        def forward() -> Any:
            held[:] = [self._step(batch)]
            return _loss_of(held[0])

        value = loss(forward, trainer.lightning_module, scaler=trainer.scaler)
        if self.batch_idx % trainer.accumulate_grad_batches == 0:
            self._forget()
        if value is None:
            return None, {}
        part = over(value, trainer.accumulate_grad_batches)
        trainer.call("on_before_backward", part)
        trainer.lightning_module.backward(scaled_by(trainer, part))
        trainer.call("on_after_backward")
        return part, _outputs(held[0], value)

    def _forget(self) -> None:
        trainer = self.trainer
        optimizer = trainer.optimizers[0]
        trainer.call("on_before_zero_grad", optimizer)
        around = vars(trainer.lightning_module)["_mpcore_optimizers"][0]
        place = (trainer.current_epoch, self.batch_idx)
        trainer.call_module("optimizer_zero_grad", *place, around)

    # --- schedules --------------------------------------------------------------------------

    def _schedule(self, interval: str, *, plateau: bool) -> None:
        trainer = self.trainer
        if not trainer.is_automatic or (interval == "step" and self._gathers()):
            return
        number = self.batch_idx if interval == "step" else trainer.current_epoch
        for one in trainer.lr_scheduler_configs:
            if one.reduce_on_plateau != plateau or one.interval != interval:
                continue
            if (number + 1) % one.frequency == 0:
                self._move(one)

    def _move(self, one: Any) -> None:
        trainer, metric = self.trainer, None
        if one.reduce_on_plateau:
            metric = trainer.callback_metrics.get(one.monitor)
            if metric is None and one.strict:
                known = sorted(trainer.callback_metrics)
                msg = f"ReduceLROnPlateau asks for {one.monitor!r}, which is not among {known}"
                raise RuntimeError(msg)
            if metric is None:
                return
        trainer.call_module("lr_scheduler_step", one.scheduler, metric)


def _asked(trainer: Any, name: str, *args: Any) -> Any:
    """Call a hook of a batch, which older versions gave the loader's number as well."""
    method = getattr(trainer.lightning_module, name, None)
    if method is None:
        return None
    older = hooks.takes(method, len(args) + 1)
    return trainer.call_module(name, *args, *((0,) if older else ()))


def _loss_of(found: Any) -> Any:
    if isinstance(found, dict):
        if "loss" not in found:
            msg = "`training_step` must return a loss, or a dictionary with the key 'loss'"
            raise RuntimeError(msg)
        return found["loss"]
    return found


def _outputs(found: Any, value: Any) -> dict[str, Any]:
    """Return what hooks get of a step: the loss as it was, and what else the step returned."""
    extra = dict(found) if isinstance(found, dict) else {}
    return {**extra, "loss": value}


def _with_last(loader: Any, count: float) -> Any:
    """Yield each batch, up to so many, and whether it is the last one."""
    batches = iter(loader)
    held = next(batches, _NOTHING)
    seen = 0
    while held is not _NOTHING and seen < count:
        seen += 1
        following = next(batches, _NOTHING) if seen < count else _NOTHING
        yield held, following is _NOTHING
        held = following


_NOTHING = object()


def _tell_epoch(loader: Any, epoch: int) -> None:
    batches = getattr(loader, "batch_sampler", None)
    for one in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
        told = getattr(one, "set_epoch", None)
        if callable(told):
            told(epoch)
