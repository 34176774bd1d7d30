"""Checkpoints as timm's scripts write and read them.

Sources: timm 1.0.31 ``utils/checkpoint_saver.py``, ``models/_helpers.py``. The files are of the
support's own format; ``mpcore convert-weights`` makes such of torch's.
"""

from __future__ import annotations

import glob
import logging
import operator
import os
import shutil
from typing import Any

from mpcore_port_runtime.files import load, save
from mpcore_port_runtime.modules import load_state_dict as put_state
from mpcore_port_runtime.modules import state_dict as state_of
from mpcore_port_runtime.moving_averages import get_state_dict, unwrap_model

__all__ = [
    "CheckpointSaver",
    "clean_state_dict",
    "load_checkpoint",
    "load_state_dict",
    "resume_checkpoint",
]

_logger = logging.getLogger("timm.utils")
_WRAPPED = ("_orig_mod.", "module.")


class CheckpointSaver:
    """timm.utils.CheckpointSaver: the last state, the best ones, and recovery files."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        args: Any = None,
        model_ema: Any = None,
        amp_scaler: Any = None,
        checkpoint_prefix: str = "checkpoint",
        recovery_prefix: str = "recovery",
        checkpoint_dir: str = "",
        recovery_dir: str = "",
        decreasing: bool = False,
        max_history: int = 10,
        unwrap_fn: Any = unwrap_model,
    ) -> None:
        if max_history < 1:
            msg = f"`max_history` must be at least 1, got {max_history}"
            raise AssertionError(msg)
        self.model, self.optimizer, self.args = model, optimizer, args
        self.model_ema, self.amp_scaler = model_ema, amp_scaler
        self.checkpoint_files: list[tuple[str, Any]] = []
        self.best_epoch: int | None = None
        self.best_metric: Any = None
        self.curr_recovery_file = self.prev_recovery_file = ""
        self.checkpoint_dir, self.recovery_dir = checkpoint_dir, recovery_dir
        self.save_prefix, self.recovery_prefix = checkpoint_prefix, recovery_prefix
        self.extension, self.decreasing = ".pth.tar", decreasing
        self.cmp = operator.lt if decreasing else operator.gt
        self.max_history, self.unwrap_fn = max_history, unwrap_fn

    def _path(self, name: str, folder: str | None = None) -> str:
        return os.path.join(
            self.checkpoint_dir if folder is None else folder, name + self.extension
        )

    def _save(self, path: str, epoch: int, metric: Any = None) -> None:
        state = {
            "epoch": epoch,
            "arch": type(self.model).__name__.lower(),
            "state_dict": get_state_dict(self.model, self.unwrap_fn),
            "optimizer": state_of(self.optimizer),
            "version": 2,
        }
        if self.args is not None:
            state |= {"arch": self.args.model, "args": self.args}
        if self.amp_scaler is not None:
            state[self.amp_scaler.state_dict_key] = self.amp_scaler.state_dict()
        if self.model_ema is not None:
            state["state_dict_ema"] = get_state_dict(self.model_ema, self.unwrap_fn)
        if metric is not None:
            state["metric"] = metric
        save(state, path)

    def save_checkpoint(self, epoch: int, metric: Any = None) -> tuple[Any, int | None]:
        """Save the last state, keep it by its number if it is among the best; return the best."""
        if epoch < 0:
            msg = f"`epoch` must be at least 0, got {epoch}"
            raise AssertionError(msg)
        fresh, last = self._path("tmp"), self._path("last")
        self._save(fresh, epoch, metric)
        os.replace(fresh, last)
        if self._is_kept(metric):
            if len(self.checkpoint_files) >= self.max_history:
                self._forget(1)
            path = self._path(f"{self.save_prefix}-{epoch}")
            _copied(last, path)
            self._rank(path, metric)
            if metric is not None and (
                self.best_metric is None or self.cmp(metric, self.best_metric)
            ):
                self.best_epoch, self.best_metric = epoch, metric
                _copied(last, self._path("model_best"))
        return (None, None) if self.best_metric is None else (self.best_metric, self.best_epoch)

    def _is_kept(self, metric: Any) -> bool:
        if len(self.checkpoint_files) < self.max_history:
            return True
        worst = self.checkpoint_files[-1][1]
        return worst is None or (metric is not None and bool(self.cmp(metric, worst)))

    def _forget(self, count: int) -> None:
        kept = self.max_history - min(len(self.checkpoint_files), count)
        for path, _ in self.checkpoint_files[kept:]:
            _removed(path)
        self.checkpoint_files = self.checkpoint_files[:kept]

    def _rank(self, path: str, metric: Any) -> None:
        """Keep the best first; what has no value comes behind, the newest first."""
        every = [(path, metric), *self.checkpoint_files]
        known = [one for one in [*self.checkpoint_files, (path, metric)] if one[1] is not None]
        known.sort(key=lambda one: one[1], reverse=not self.decreasing)
        self.checkpoint_files = known + [one for one in every if one[1] is None]
        listed = "".join(f" {one}\n" for one in self.checkpoint_files)
        _logger.info("Current checkpoints:\n%s", listed)

    def save_recovery(self, epoch: int, batch_idx: int = 0) -> None:
        """Save a state in the middle of an epoch; the two last ones are kept."""
        path = self._path(f"{self.recovery_prefix}-{epoch}-{batch_idx}", self.recovery_dir)
        self._save(path, epoch)
        if os.path.exists(self.prev_recovery_file):
            _removed(self.prev_recovery_file)
        self.prev_recovery_file, self.curr_recovery_file = self.curr_recovery_file, path

    def find_recovery(self) -> str:
        """Return the first recovery file by its name; "" if there is none."""
        head = os.path.join(self.recovery_dir, self.recovery_prefix)
        return min(glob.glob(f"{glob.escape(head)}*{self.extension}"), default="")


def _copied(source: str, path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
    try:
        os.link(source, path)
    except OSError:
        shutil.copy2(source, path)


def _removed(path: str) -> None:
    try:
        os.remove(path)
    except OSError as exc:
        _logger.error("%s while removing %s", exc, path)  # training goes on


def clean_state_dict(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state without what wrappers put in front of its names."""
    found = {}
    for name, value in state_dict.items():
        short = name
        if name.startswith(_WRAPPED):
            for head in (*_WRAPPED, _WRAPPED[0]):
                short = short.removeprefix(head)
        found[short] = value
    return found


def _found(checkpoint_path: str) -> str:
    path = os.fspath(checkpoint_path)
    if not os.path.isfile(path):
        _logger.error("No checkpoint found at '%s'", path)
        raise FileNotFoundError(path)
    return path


def load_state_dict(
    checkpoint_path: str, use_ema: bool = True, device: Any = "cpu", weights_only: bool = True
) -> dict[str, Any]:
    """Return the network's state of a checkpoint, its average where there is one."""
    del device, weights_only
    checkpoint = load(_found(checkpoint_path))
    key = ""
    if use_ema:
        averages = ("state_dict_ema", "model_ema")
        key = next((name for name in averages if checkpoint.get(name) is not None), "")
    key = key or next((name for name in ("state_dict", "model") if name in checkpoint), "")
    _logger.info("Loaded %s from checkpoint '%s'", key, checkpoint_path)
    return clean_state_dict(checkpoint[key] if key else checkpoint)


def load_checkpoint(
    model: Any,
    checkpoint_path: str,
    use_ema: bool = True,
    device: Any = "cpu",
    strict: bool = True,
    remap: bool = False,
    filter_fn: Any = None,
    weights_only: bool = True,
) -> Any:
    """Give a network the state of a checkpoint; return what did not fit.

    Raises:
        NotImplementedError: ``remap`` is asked for, or the file is one of numpy's.
    """
    if remap or os.path.splitext(checkpoint_path)[-1].lower() in (".npz", ".npy"):
        msg = "`remap` and numpy's files are not ported: take the weights along by their names"
        raise NotImplementedError(msg)
    state = load_state_dict(checkpoint_path, use_ema, device, weights_only)
    if filter_fn is not None:
        state = filter_fn(state, model)
    return put_state(model, state, strict)


def resume_checkpoint(
    model: Any,
    checkpoint_path: str,
    optimizer: Any = None,
    loss_scaler: Any = None,
    log_info: bool = True,
    weights_only: bool = True,
) -> int | None:
    """Give network, optimizer and scaler their states back; return the epoch to go on with."""
    del weights_only
    checkpoint = load(_found(checkpoint_path))
    if "state_dict" not in checkpoint:
        put_state(model, checkpoint)
        return None
    put_state(model, clean_state_dict(checkpoint["state_dict"]))
    if optimizer is not None and "optimizer" in checkpoint:
        put_state(optimizer, checkpoint["optimizer"])
    if loss_scaler is not None and loss_scaler.state_dict_key in checkpoint:
        loss_scaler.load_state_dict(checkpoint[loss_scaler.state_dict_key])
    if "epoch" not in checkpoint:
        return None
    if log_info:
        epoch = checkpoint["epoch"]
        _logger.info("Loaded checkpoint '%s' (epoch %s)", checkpoint_path, epoch)
    return int(checkpoint["epoch"] + (checkpoint.get("version", 1) > 1))
