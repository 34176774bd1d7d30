"""What numpy joins of data that is not there: rows of zeros, of as many axes as are asked for."""

from __future__ import annotations

import functools
import sys
from typing import Any

from mpcore_port.verify.roles import BATCH
from mpcore_port.verify.synthetic import Missing

__all__ = ["install"]

_JOIN = ("concatenate", "hstack", "stack", "vstack")
_WIDTH = 16


def install() -> None:
    """Let numpy join what is not there, in this process: ``np.concatenate(dataset.labels)``."""
    numpy = sys.modules.get("numpy")
    if numpy is None or hasattr(numpy.concatenate, "_mpcore_joins"):
        return
    rows = _kind(numpy)
    for name in _JOIN:
        setattr(numpy, name, _or_rows(getattr(numpy, name), rows))


def _or_rows(join: Any, rows: Any) -> Any:
    @functools.wraps(join)
    def run(*args: Any, **kwargs: Any) -> Any:
        held: Any = args[0] if args else None
        listed: Any = held if type(held) in (list, tuple) else [held]
        if any(isinstance(one, Missing) for one in listed):
            return rows((BATCH,))
        return join(*args, **kwargs)

    run._mpcore_joins = True  # type: ignore[attr-defined]
    return run


def _kind(numpy: Any) -> Any:
    """Return the class of such rows: an array, which grows by the axes that an index has more."""

    class Rows(numpy.ndarray):  # type: ignore[misc]
        def __new__(cls, shape: tuple[int, ...]) -> Any:
            return numpy.zeros(shape).view(cls)

        def __getitem__(self, key: Any) -> Any:
            plain = self.view(numpy.ndarray)
            axes = (
                [one for one in key if one is not None and one is not ...]
                if type(key) is tuple
                else []
            )
            for _ in range(len(axes) - plain.ndim):
                plain = plain[..., None].repeat(_WIDTH, -1)
            return plain[key]

    return Rows
