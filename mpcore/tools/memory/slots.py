"""What optimizers keep for each parameter: a table, and where the frameworks differ.

Source: counted from the optimizers themselves, torch 2.13, Keras 3.15 and MindSpore 2.10;
``tests/backends/test_memory.py`` counts again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError, check_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SLOTS", "SlotRule", "optimizer_slots"]

SLOTS: dict[str, float] = {
    # arrays of the parameter's shape; what an option adds is in _EXTRA
    "sgd": 0,
    "momentum": 1,
    "lars": 1,
    "adam": 2,
    "adamw": 2,
    "adamweightdecay": 2,
    "adamax": 2,
    "nadam": 2,
    "radam": 2,
    "lazyadam": 2,
    "lamb": 2,
    "lion": 1,
    "adagrad": 1,
    "proximaladagrad": 1,
    "adadelta": 2,
    "rmsprop": 1,
    "rprop": 2,
    "asgd": 1,
    "ftrl": 2,
}
"""Arrays per parameter, by the optimizer's class in small letters."""

_EXTRA: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum",),
    "adam": ("amsgrad", "use_amsgrad"),
    "adamw": ("amsgrad",),
    "rmsprop": ("momentum", "centered"),
}
_OWN: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {
    # where a framework is unlike the others: arrays that are always there, and what options add
    ("mindspore", "sgd"): (2, ()),
    ("mindspore", "rmsprop"): (2, ("centered",)),
    ("mpcore_numpy", "sgd"): (1, ()),
}


@dataclass(frozen=True)
class SlotRule:
    """State of one optimizer.

    Attributes:
        name: its class.
        arrays: arrays of the parameter's shape.
    """

    name: str
    arrays: float

    def bytes(self, shape: Sequence[int], width: int) -> float:
        """Return the bytes for one parameter, its numbers of ``width`` bytes each."""
        return self.arrays * math.prod(shape) * width


def optimizer_slots(optimizer: Any) -> SlotRule:
    """Return what ``optimizer`` keeps for each parameter.

    Args:
        optimizer: of any framework, a list or dict of some (the largest counts), or a name.

    Raises:
        BackendError: its class is not in the table.

    Examples:
        >>> optimizer_slots("adam").arrays, optimizer_slots("SGD").arrays
        (2, 0)
    """
    if isinstance(optimizer, dict):
        optimizer = list(optimizer.values())
    if isinstance(optimizer, list | tuple):
        rules = [optimizer_slots(entry) for entry in optimizer]
        return max(rules, key=lambda rule: rule.arrays)
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # Keras' LossScaleOptimizer
    name = inner if isinstance(inner, str) else type(inner).__name__
    key = check_choice("optimizer", name.lower(), SLOTS, BackendError)
    root = type(inner).__module__.partition(".")[0]
    arrays, options = _OWN.get((root, key), (SLOTS[key], _EXTRA.get(key, ())))
    extra = sum(bool(_option(inner, option)) for option in options)
    ema = bool(getattr(inner, "use_ema", False))  # Keras: an average of the weights
    return SlotRule(name, arrays + extra + ema)


def _option(optimizer: Any, name: str) -> Any:
    """Return an option, from the first parameter group where there are groups."""
    groups = getattr(optimizer, "param_groups", None)
    if groups:
        return groups[0].get(name, False)
    return getattr(optimizer, name, False)
