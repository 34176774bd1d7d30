"""What a batch is made of, in words: ``float32[8,3,32,32], int64[8]<10``.

An item is a dtype, its sizes in brackets, and for whole numbers the bound that they stay below.
``float32[8,1]<2`` draws whole numbers too, as float32: the labels of binary losses;
``int64[8]=16`` is that number everywhere: lengths. Items stand in
the order in which the training loop takes a batch apart. ``-> same`` behind them says what networks
give that are not there: ``scores``, ``same`` as what goes in, a ``map`` of scores, or a ``number``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcore.errors import check_choice
from mpcore_port.errors import PortError

__all__ = ["FORMS", "Input", "draw", "read_inputs", "split_form"]

FORMS = ("scores", "same", "map", "number")
"""What a network that is not there may give."""

_DTYPES = ("float16", "float32", "float64", "int32", "int64", "bool")
_ITEM = re.compile(r"(\w+)\s*\[([\d\s,]*)\]\s*(?:<\s*(\d+)|=\s*(\d+))?")
_LARGEST = 2**28  # elements of one tensor: a gigabyte of float32
_LIKE = "write it like float32[8,3,32,32], int64[8]<10"


@dataclass(frozen=True)
class Input:
    """One tensor of a batch: ``below`` bounds whole numbers, None stands for normal ones.

    With ``fill`` every element is that number.
    """

    dtype: str
    shape: tuple[int, ...]
    below: int | None = None
    fill: int | None = None

    def __str__(self) -> str:
        bound = "" if self.below is None else f"<{self.below}"
        bound = bound if self.fill is None else f"={self.fill}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{bound}"


def read_inputs(text: str) -> tuple[Input, ...]:
    """Return the items of ``text``.

    Raises:
        PortError: with the item that is wrong.
    """
    text, form = split_form(text)
    if form:
        check_choice("--inputs ->", form, FORMS, PortError)
    items = [part.strip() for part in re.split(r",(?![^\[]*\])", text)]
    return tuple(_item(part, number) for number, part in enumerate(items, 1))


def split_form(text: str) -> tuple[str, str]:
    """Return the items, and what networks give that are not there; "" if that is not said."""
    items, _, form = text.partition("->")
    return items.strip(), form.strip()


def _item(text: str, number: int) -> Input:
    found = _ITEM.fullmatch(text)
    if found is None:
        msg = f"`--inputs` item {number} must be DTYPE[SIZES] or DTYPE[SIZES]<BOUND, got {text!r}; "
        raise PortError(msg + _LIKE)
    dtype, sizes, bound = found[1], found[2], found[3]
    fill = None if found[4] is None else int(found[4])
    if dtype not in _DTYPES:
        msg = f"`--inputs` item {number}: dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}"
        raise PortError(msg)
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if 0 in shape or np.prod(shape, dtype=float) > _LARGEST:
        msg = (
            f"`--inputs` item {number}: sizes must be >= 1, {_LARGEST} elements at most, "
            f"got {text!r}"
        )
        raise PortError(msg)
    if dtype.startswith("int") and bound is None and fill is None:
        msg = f"`--inputs` item {number}: whole numbers need a bound, as {text}<10"
        raise PortError(msg)
    below = None if bound is None else int(bound)
    if below is not None and not 1 <= below <= 2**31 - 1:
        msg = f"`--inputs` item {number}: the bound must be in [1, 2147483647], got {below}"
        raise PortError(msg)
    return Input(dtype, shape, below, fill)


def draw(text: str, batches: int) -> list[tuple[Any, ...]]:
    """Return ``batches`` tuples of numpy arrays as ``text`` says, the same ones each time."""
    random = np.random.RandomState(0)
    return [tuple(_one(item, random) for item in read_inputs(text)) for _ in range(batches)]


def _one(item: Input, random: np.random.RandomState) -> Any:
    if item.fill is not None:
        return np.full(item.shape, item.fill, item.dtype)
    if item.below is not None or item.dtype == "bool":
        below = 2 if item.below is None else item.below
        return random.randint(0, below, item.shape).astype(item.dtype)
    return random.standard_normal(item.shape).astype(item.dtype)
