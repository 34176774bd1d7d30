"""lightning.pytorch.tuner.Tuner, which searches nothing: sizes and rates stay as they are set.

Source: the interface of lightning 2.6.6, ``pytorch/tuner/``.
"""

from __future__ import annotations

import warnings
from typing import Any

from mpcore_port_runtime.refusal import PortWarning

__all__ = ["Tuner"]

_MISSING = object()


def _held(model: Any, names: tuple[str, ...], default: Any) -> Any:
    """Return what a network, or its settings, has under the first of some names."""
    settings = getattr(model, "hparams", None)
    for name in names:
        if hasattr(model, name):
            return getattr(model, name)
        found = settings.get(name, _MISSING) if isinstance(settings, dict) else _MISSING
        if found is not _MISSING:
            return found
    return default


def _warn(what: str) -> None:
    text = f"nothing is searched: {what} stays as it is set"
    warnings.warn(text, PortWarning, stacklevel=3)


class _Found:
    """What lr_find returns: the rate that there is."""

    def __init__(self, rate: Any) -> None:
        self.rate = rate
        self.results: dict[str, list[Any]] = {"lr": [], "loss": []}

    def suggestion(self, *_: Any, **__: Any) -> Any:
        """Return the rate."""
        return self.rate

    def plot(self, *_: Any, **__: Any) -> None:
        """Draw nothing."""


class Tuner:
    """What would look for a batch size and a rate in front of a Trainer's run."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def scale_batch_size(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: str = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        **_: Any,
    ) -> Any:
        """Return the batch size that the network, its settings or the data say."""
        del train_dataloaders, val_dataloaders, dataloaders, method, mode, steps_per_trial
        del max_trials
        _warn("the batch size")
        found = _held(model, (batch_arg_name,), None)
        return _held(datamodule, (batch_arg_name,), init_val) if found is None else found

    def lr_find(self, model: Any, *_: Any, attr_name: str = "", **__: Any) -> _Found:
        """Return the rate that the network or its settings say; None where they say none."""
        _warn("the rate")
        names = (attr_name,) if attr_name else ("lr", "learning_rate")
        return _Found(_held(model, names, None))
