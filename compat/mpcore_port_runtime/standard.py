"""Objects of the standard library in checkpoints: what each is made of, and made of it again."""

from __future__ import annotations

import argparse
import datetime
import types
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["made_of", "remade"]

_FACTORIES = {one.__name__: one for one in (dict, float, int, list, set, str)}


def _of_default(given: defaultdict[Any, Any]) -> list[Any]:
    name = getattr(given.default_factory, "__name__", None)
    return [name if name in _FACTORIES else None, dict(given)]


def _default(parts: list[Any]) -> Any:
    return dict(parts[1]) if parts[0] is None else defaultdict(_FACTORIES[parts[0]], parts[1])


def _of_time(given: datetime.timedelta) -> list[int]:
    return [given.days, given.seconds, given.microseconds]


_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Namespace": (argparse.Namespace, vars, lambda part: argparse.Namespace(**part)),
    "SimpleNamespace": (
        types.SimpleNamespace,
        vars,
        lambda part: types.SimpleNamespace(**part),
    ),
    "Path": (PurePath, str, Path),
    "bytes": (bytes, lambda given: given.decode("latin1"), lambda part: part.encode("latin1")),
    "complex": (complex, lambda given: [given.real, given.imag], lambda part: complex(*part)),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "deque": (deque, lambda given: [list(given), given.maxlen], lambda part: deque(*part)),
    "range": (range, lambda given: [given.start, given.stop, given.step], lambda p: range(*p)),
    "slice": (slice, lambda given: [given.start, given.stop, given.step], lambda p: slice(*p)),
    "datetime": (
        datetime.datetime,
        datetime.datetime.isoformat,
        datetime.datetime.fromisoformat,
    ),
    "timedelta": (datetime.timedelta, _of_time, lambda part: datetime.timedelta(*part)),
    "Counter": (Counter, dict, Counter),
    "OrderedDict": (OrderedDict, dict, OrderedDict),
    "defaultdict": (defaultdict, _of_default, _default),
}


def made_of(obj: Any) -> tuple[str, Any] | None:
    """Return the kind of an object of the standard library, and what it is made of; else None."""
    if isinstance(obj, np.ndarray) and obj.dtype.kind in "OUS":  # no numbers
        return "words", [obj.dtype.str, obj.tolist()]
    if isinstance(obj, np.dtype):
        return "numpy", obj.str
    if isinstance(obj, type(ms.float32).__mro__[1]):
        return "dtype", str(obj).lower()
    for name, (kind, of, _) in _KINDS.items():
        plain = type(obj) is kind or (name in ("Path", "Namespace") and isinstance(obj, kind))
        if plain:
            return name, of(obj)
    return None


def remade(name: str, part: Any) -> Any:
    """Return an object of a kind that ``made_of`` named."""
    if name == "words":
        return np.array(part[1], dtype=part[0])
    if name == "numpy":
        return np.dtype(part)
    if name == "dtype":
        return getattr(ms, "bool_" if part == "bool" else part)
    return _KINDS[name][2](part)
