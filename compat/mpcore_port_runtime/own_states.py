"""``__getstate__`` and ``__setstate__`` of a network's own: dictionaries, where a Cell has a pair.

Source: ``Module.__setstate__`` of torch/nn/modules/module.py, torch 2.13.0, and ``Cell`` of
mindspore/nn/cell.py, MindSpore 2.10.0.
"""

from __future__ import annotations

import functools
from typing import Any

from mindspore import nn

__all__ = ["own_state", "set_state", "state_of"]

_PAIR = 2
_BASE = nn.Cell.__mro__[1]


def own_state(method: Any) -> Any:
    """Return a network's ``__getstate__`` or ``__setstate__`` as copies of a Cell need it."""

    @functools.wraps(method)
    def given(cell: Any) -> Any:
        return _BASE.__getstate__(cell), method(cell)

    @functools.wraps(method)
    def taken(cell: Any, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == _PAIR:
            _BASE.__setstate__(cell, state[0])
            state = state[1]
        method(cell, state)

    return given if method.__name__ == "__getstate__" else taken


def state_of(cell: Any) -> dict[str, Any]:
    """Return what a network holds by its names, as ``super().__getstate__()`` of torch's does."""
    return dict(vars(cell))


def set_state(cell: Any, state: dict[str, Any]) -> None:
    """Have a network hold what a dictionary says, as ``Module.__setstate__`` does."""
    vars(cell).update(state)
