"""Callbacks of a Trainer: files of weights, early ends, what is only shown.

Source: lightning 2.6.6, ``pytorch/callbacks/``.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from mpcore_port_runtime.rates import rate_of

__all__ = ["Callback", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint", "Shown"]


class Callback:
    """lightning.pytorch.Callback: the methods that a class of a script's own has are called."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look at a Trainer that begins."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look at a Trainer that ends."""

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""


class Shown(Callback):
    """A callback that only shows something: bars, tables, the device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


class LearningRateMonitor(Callback):
    """lightning.pytorch.callbacks.LearningRateMonitor: rates go to the loggers."""

    def __init__(
        self,
        logging_interval: str | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        del log_momentum, log_weight_decay  # they are only shown
        self.logging_interval = logging_interval

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Log the rates of a step."""
        due = trainer.fit_loop.batches_stepped % max(trainer.log_every_n_steps or 1, 1) == 0
        if self.logging_interval != "epoch" and due:
            _log_rates(trainer)

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Log the rates of an epoch."""
        if self.logging_interval != "step":
            _log_rates(trainer)


def _log_rates(trainer: Any) -> None:
    rates = {}
    for optimizer in trainer.optimizers:
        several = len(optimizer.param_groups) > 1
        for number, group in enumerate(optimizer.param_groups, 1):
            name = f"lr-{type(optimizer).__name__}" + (f"/pg{number}" if several else "")
            rates[name] = rate_of(group)
    trainer.callback_metrics.update(rates)
    for one in trainer.loggers:
        one.log_metrics(rates, trainer.fit_loop.batches_stepped)


class EarlyStopping(Callback):
    """lightning.pytorch.callbacks.EarlyStopping."""

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        del verbose, log_rank_zero_only
        if mode not in ("min", "max"):
            msg = f"`mode` must be 'min' or 'max', got {mode!r}"
            raise ValueError(msg)
        self.monitor, self.mode, self.patience, self.strict = monitor, mode, patience, strict
        self.min_delta = abs(min_delta) if mode == "max" else -abs(min_delta)
        self.check_finite, self.stopping_threshold = check_finite, stopping_threshold
        self.divergence_threshold = divergence_threshold
        self._at_train_end = check_on_train_epoch_end
        self.wait_count = self.stopped_epoch = 0
        self.best_score = math.inf if mode == "min" else -math.inf

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Choose when to look."""
        del pl_module, stage
        if self._at_train_end is None:
            whole = trainer.asked["val_check_interval"] == 1.0
            self._at_train_end = whole and trainer.check_val_every_n_epoch == 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look behind an epoch."""
        del pl_module
        if self._at_train_end:
            self._look(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Look behind a validation."""
        del pl_module
        if not self._at_train_end and _fits(trainer):
            self._look(trainer)

    def _look(self, trainer: Any) -> None:
        if trainer.fast_dev_run:
            return
        if self.monitor not in trainer.callback_metrics:
            if self.strict:
                known = sorted(trainer.callback_metrics)
                msg = f"EarlyStopping asks for {self.monitor!r}, which is not among {known}"
                raise RuntimeError(msg)
            return
        if self._ends(float(trainer.callback_metrics[self.monitor])):
            trainer.should_stop, self.stopped_epoch = True, trainer.current_epoch

    def _ends(self, current: float) -> bool:
        """Return whether training ends at a value."""
        if self.check_finite and not math.isfinite(current):
            return True
        if self.stopping_threshold is not None and self._better(current, self.stopping_threshold):
            return True
        limit = self.divergence_threshold
        if limit is not None and self._better(-current, -limit):
            return True
        if self._better(np.float32(current) - np.float32(self.min_delta), self.best_score):
            self.best_score, self.wait_count = current, 0
            return False
        self.wait_count += 1
        return self.wait_count >= self.patience

    def _better(self, one: Any, other: Any) -> bool:
        return bool(one < other if self.mode == "min" else one > other)

    def state_dict(self) -> dict[str, Any]:
        """Return what it has seen."""
        names = ("wait_count", "stopped_epoch", "best_score", "patience")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        vars(self).update(state_dict)


def _fits(trainer: Any) -> bool:
    """Return whether a validation is one of a fit, and no check in front of it."""
    return not trainer.sanity_checking and trainer.fit_loop.runs


class ModelCheckpoint(Callback):
    """lightning.pytorch.callbacks.ModelCheckpoint: files that the port's Trainer reads."""

    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"

    def __init__(
        self,
        dirpath: Any = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: Any = None,
        save_top_k: int = 1,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: Any = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
        save_on_exception: bool = False,
        period: int | None = None,
    ) -> None:
        """Take Lightning's arguments.

        Raises:
            NotImplementedError: it saves by the time.
        """
        del verbose, save_on_exception
        if train_time_interval is not None:
            msg = "`train_time_interval` is not ported: save by steps or epochs"
            raise NotImplementedError(msg)
        if mode not in ("min", "max"):
            msg = f"`mode` must be 'min' or 'max', got {mode!r}"
            raise ValueError(msg)
        self.dirpath = None if dirpath is None else os.path.abspath(str(dirpath))
        self.filename, self.monitor, self.mode = filename, monitor, mode
        self.save_last, self.save_top_k = save_last, save_top_k
        self.save_weights_only, self._names = save_weights_only, auto_insert_metric_name
        self._every_step = every_n_train_steps or 0
        epochs = every_n_epochs if every_n_epochs is not None else period
        self._every_epoch = (0 if every_n_train_steps else 1) if epochs is None else epochs
        self._at_train_end, self._counts = save_on_train_epoch_end, enable_version_counter
        self.best_k_models: dict[str, float] = {}
        self.best_model_path = self.last_model_path = self.kth_best_model_path = ""
        self.best_model_score: Any = None
        self.current_score: Any = None
        self._saved_at, self._waits = -1, False

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint."""
        return (
            f"ModelCheckpoint[{self.monitor}, {self.mode}, {self._every_step}, {self._every_epoch}]"
        )

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Choose the folder."""
        del pl_module
        if self.dirpath is None and stage == "fit":
            self.dirpath = os.path.join(trainer.log_dir, "checkpoints")

    # --- when -------------------------------------------------------------------------------

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Save behind so many steps."""
        if not self._every_step or trainer.global_step % self._every_step or self._skips(trainer):
            return
        late = trainer.fit_loop.validates_next() and not self._is_of_train(trainer)
        if self.monitor is not None and (late or self.monitor not in trainer.callback_metrics):
            self._waits = True
            return
        self._save(trainer)
        self._save_last(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save behind an epoch."""
        del pl_module
        if not self._skips(trainer) and self._is_of_train(trainer):
            self._save_epoch(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save behind a validation."""
        del pl_module
        if not _fits(trainer) or self._skips(trainer) or self._is_of_train(trainer):
            return
        if self._waits:
            self._save(trainer)
            self._save_last(trainer)
            self._waits = False
        else:
            self._save_epoch(trainer)

    def _save_epoch(self, trainer: Any) -> None:
        if self._every_epoch and (trainer.current_epoch + 1) % self._every_epoch == 0:
            self._save(trainer)
        if self._saved_at == trainer.global_step:
            self._save_last(trainer)

    def _skips(self, trainer: Any) -> bool:
        return bool(trainer.fast_dev_run) or self._saved_at == trainer.global_step

    def _is_of_train(self, trainer: Any) -> bool:
        if self._at_train_end is not None:
            return self._at_train_end
        if trainer.check_val_every_n_epoch != 1:
            return False
        if not trainer.has_validation(trainer.val_dataloaders):
            return True
        return bool(trainer.asked["val_check_interval"] == 1.0)

    # --- what -------------------------------------------------------------------------------

    def _save(self, trainer: Any) -> None:
        if self.save_top_k == 0:
            return
        if self.monitor is None:
            path = self._free(trainer, self.best_model_path)
            before, self.best_model_path = self.best_model_path, path
            self._write(trainer, path)
            if self.save_top_k == 1:
                _remove(before, path)
            return
        if self.monitor not in trainer.callback_metrics:
            known = sorted(trainer.callback_metrics)
            msg = f"ModelCheckpoint(monitor={self.monitor!r}) finds no such value among {known}"
            raise RuntimeError(msg)
        current = float(trainer.callback_metrics[self.monitor])
        if self._is_among(current):
            self._keep(trainer, current)

    def _is_among(self, current: float) -> bool:
        if self.save_top_k == -1 or len(self.best_k_models) < self.save_top_k:
            return True
        worst = self.best_k_models[self.kth_best_model_path]
        return current < worst if self.mode == "min" else current > worst

    def _keep(self, trainer: Any, current: float) -> None:
        dropped = ""
        if len(self.best_k_models) == self.save_top_k:
            dropped = self.kth_best_model_path
            self.best_k_models.pop(dropped)
        if math.isnan(current):
            current = math.inf if self.mode == "min" else -math.inf
        path = self._free(trainer, dropped)
        self.current_score = self.best_k_models[path] = current
        low, high = (min, max) if self.mode == "min" else (max, min)
        if self.save_top_k in (-1, len(self.best_k_models)):
            self.kth_best_model_path = high(self.best_k_models, key=lambda k: self.best_k_models[k])
        self.best_model_path = low(self.best_k_models, key=lambda k: self.best_k_models[k])
        self.best_model_score = self.best_k_models[self.best_model_path]
        self._write(trainer, path)
        _remove(dropped, path)

    def _save_last(self, trainer: Any) -> None:
        if not self.save_last:
            return
        path = os.path.join(self.dirpath or "", f"{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}")
        version = 1
        while self._counts and os.path.exists(path) and path != self.last_model_path:
            path = path.rpartition(self.CHECKPOINT_NAME_LAST)[0] + (
                f"{self.CHECKPOINT_NAME_LAST}-v{version}{self.FILE_EXTENSION}"
            )
            version += 1
        before, self.last_model_path = self.last_model_path, path
        self._write(trainer, path)
        _remove(before, path)

    def _write(self, trainer: Any, path: str) -> None:
        trainer.save_checkpoint(path, self.save_weights_only)
        self._saved_at = trainer.global_step

    # --- names ------------------------------------------------------------------------------

    def _free(self, trainer: Any, replaced: str) -> str:
        """Return a path that nothing lies at; what it replaces may."""
        path = self._path(trainer, "")
        version = 1
        while self._counts and os.path.exists(path) and path != replaced:
            path = self._path(trainer, f"-v{version}")
            version += 1
        return path

    def _path(self, trainer: Any, version: str) -> str:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        whole = {"epoch": trainer.current_epoch, "step": trainer.global_step}
        name = _named(self.filename, {**values, **whole}, insert=self._names)
        return os.path.join(self.dirpath or "", f"{name}{version}{self.FILE_EXTENSION}")

    def state_dict(self) -> dict[str, Any]:
        """Return what it has saved."""
        names = ("best_model_path", "last_model_path", "kth_best_model_path", "best_k_models")
        found = {name: getattr(self, name) for name in (*names, "best_model_score")}
        return {**found, "dirpath": self.dirpath}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned, where it saves into the same folder."""
        if state_dict["dirpath"] == self.dirpath:
            vars(self).update(state_dict)
        else:
            self.best_model_path = state_dict["best_model_path"]


def _named(filename: str | None, values: dict[str, Any], *, insert: bool) -> str:
    """Return the name of a file with what it names in braces."""
    text = filename or "{epoch}-{step}"
    groups = sorted(re.findall(r"(\{.*?)[:\}]", text), key=len, reverse=True)
    for group in groups:
        name = group[1:]
        if insert:
            text = text.replace(group, f"{name}={{{name}")
        text = text.replace(group, f"{{0[{name}]")
        values.setdefault(name, 0)
    return text.format(values)


def _remove(path: str, kept: str) -> None:
    if path and path != kept:
        Path(path).unlink(missing_ok=True)
