"""What a layer of unknown class might be called with, guessed from the shapes of its parameters."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from inspect import Parameter

__all__ = ["Given", "Shapes", "guesses"]

_Shape = tuple[int, ...]
Given = tuple[tuple[str, _Shape], ...]
"""What a layer is called with: for each argument ("float" or "int", shape)."""

_MOST_SIZES = 8  # of axes of the parameters that an input may have
_BATCH, _LENGTH, _SIDE, _LARGEST_KERNEL = 2, 3, 16, 64
_INTEGERS = ("ind", "idx", "ids", "token", "pos", "expert", "label")
"""Parts of the names of arguments that are likely to be whole numbers: those are tried first."""


@dataclass(frozen=True)
class Shapes:
    """Shapes that a layer has.

    Attributes:
        params: of its parameters, the largest first.
        groups: of a convolution.
        buffers: of its buffers.
    """

    params: tuple[_Shape, ...]
    groups: int = 1
    buffers: tuple[_Shape, ...] = ()

    @classmethod
    def of(
        cls, params: Iterable[_Shape], groups: int = 1, buffers: Iterable[_Shape] = ()
    ) -> Shapes:
        """Sort them."""
        ordered = sorted(params, key=math.prod, reverse=True)
        return cls(tuple(ordered), groups, tuple(shape for shape in buffers if shape))

    @property
    def sizes(self) -> list[int]:
        """Return how long the axes are that an input may have."""
        found = dict.fromkeys(size for shape in self.params for size in self._axes(shape))
        return list(found)[:_MOST_SIZES] or [_SIDE]  # one number goes with any size

    def _axes(self, shape: _Shape) -> Iterator[int]:
        yield from (size for size in reversed(shape) if size > 1)
        if len(shape) > 2:
            yield shape[1] * self.groups


def guesses(params: Sequence[Parameter], shapes: Shapes, *, optional: bool) -> Iterator[Given]:
    """Yield what a layer might be called with, the likeliest first.

    Args:
        params: the parameters of its forward, without ``self``.
        shapes: the shapes that it has.
        optional: whether to fill what is None by default as well; nothing if there is none.
    """
    found = [
        param
        for param in params
        if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD, param.VAR_POSITIONAL)
    ]
    required = [param.name for param in found if param.default is param.empty]
    names = [param.name for param in found if param.default is param.empty or param.default is None]
    if optional and names == required:
        return
    names = names if optional else required
    if not names:
        yield ()
        return
    for first in _firsts(shapes, names[0], alone=len(names) == 1):
        if len(names) == 1:
            yield (first,)
            continue
        for rest in itertools.product(*(_others(first, name, shapes) for name in names[1:])):
            yield (first, *rest)


def _firsts(found: Shapes, name: str, *, alone: bool) -> Iterator[tuple[str, _Shape]]:
    shapes, sizes = found.params, found.sizes
    kernels = (size for shape in shapes for size in shape[2:] if size <= _LARGEST_KERNEL)
    side = max([_SIDE, *kernels])
    whole = ("int", (_BATCH, _LENGTH))
    if any(part in name for part in _INTEGERS):
        yield whole
    deepest = max((len(shape) for shape in shapes), default=0)
    forms: list[tuple[_Shape, ...]] = [tuple((_BATCH * _LENGTH, n) for n in sizes)]
    forms.append(tuple((_BATCH, _LENGTH, n) for n in sizes))
    forms.append(tuple((_BATCH, n, side, side) for n in sizes))
    forms.append(tuple((_BATCH, n, side) for n in sizes))
    forms.append(tuple((_BATCH, side, side, n) for n in sizes))
    forms.append(tuple((_BATCH, *shape[-2:]) for shape in shapes if len(shape) > 1))
    forms.append(tuple((_BATCH, *shape[-3:]) for shape in shapes if len(shape) > 2))
    # What is added to scores of attention has their shape.
    tables = [_table(shape) for shape in found.buffers]
    forms.append(tuple((_BATCH, n, *shape) for shape in tables for n in sizes))
    # A convolution's weight says how many axes its input has.
    first = {3: 3, 4: 2, 5: 4}.get(deepest, 0) if alone else 0
    if deepest == 5:
        forms.append(tuple((_BATCH, n, 8, 8, 8) for n in sizes))
        first = len(forms) - 1 if alone else 0
    for shape in itertools.chain(forms[first], *forms):
        yield "float", shape
    yield whole


def _table(shape: _Shape) -> _Shape:
    side = math.isqrt(shape[-1])
    return shape[-2:] if len(shape) > 1 else (side, side)


def _others(first: tuple[str, _Shape], name: str, found: Shapes) -> list[tuple[str, _Shape]]:
    rows = first[1][:-1]
    whole = [("int", (*rows, 2)), ("int", (_BATCH, _LENGTH))]
    sizes = [n for n in found.sizes[:3] if n != first[1][-1]]
    floats = [first, ("float", (*rows, 2)), *(("float", (*rows, n)) for n in sizes)]
    return [*whole, *floats] if any(part in name for part in _INTEGERS) else [*floats, *whole]
