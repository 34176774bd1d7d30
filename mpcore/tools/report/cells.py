"""The cells of a heat map: how far each quantity of a layer lies apart, as text and as colour."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING

from mpcore.tools.report.numbers import (
    NONE,
    format_difference,
    format_percent,
    short_power,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.tools.report.layers import Distance, LayerDistance

__all__ = ["LIMITS", "MEASURES", "QUANTITIES", "Cell", "Layer", "layer_rows"]

QUANTITIES = (
    ("output", "output", "output"),
    ("grad", "input gradient", "input grad"),
    ("param_grad", "parameter gradient", "param grad"),
    ("update", "update", "update"),
)
"""What is compared of a layer: its name in a result, in words, and over a narrow column."""

MEASURES = ("relative", "noise tolerance", "cosine", "largest", "off by 0.1 %", "ULP")
"""Heads of ``Cell.numbers``."""

LIMITS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Relative differences at which the colour of a heat map changes: above the first is the second."""


@dataclass(frozen=True)
class Cell:
    """How far one quantity of a layer lies apart.

    Attributes:
        name: of the quantity, in words.
        brief: the same, for a narrow column.
        text: the relative difference, short.
        level: which colour of the heat map, from 0; None where nothing was compared.
        beyond: whether noise does not explain it.
        excess: relative difference over the tolerance; 0 where there is none.
        tip: all of it in one line.
        numbers: in the order of ``MEASURES``; none where nothing was compared.
    """

    name: str = ""
    brief: str = ""
    text: str = NONE
    level: int | None = None
    beyond: bool = False
    excess: float = 0.0
    tip: str = ""
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layer:
    """One layer, or one op inside of a layer.

    Attributes:
        path: in the reference.
        own_path: in the other run, where it has another name there.
        type: class, in the words of the reference.
        cells: in the order of ``QUANTITIES``.
        first: whether the two diverge here first.
        note: what was found here, such as ``"first: eps"``; empty for nothing.
    """

    path: str
    own_path: str
    type: str
    cells: tuple[Cell, ...]
    first: bool
    note: str

    @property
    def has_numbers(self) -> bool:
        """Whether anything of it could be compared."""
        return any(cell.numbers for cell in self.cells)

    @property
    def label(self) -> str:
        """Return the path in at most 44 letters; its end says most."""
        whole = self.path
        return whole if len(whole) <= 44 else f"{whole[:12]}\N{HORIZONTAL ELLIPSIS}{whole[-31:]}"


def layer_rows(
    rows: Sequence[LayerDistance], first: str | None, found: Mapping[str, str]
) -> tuple[Layer, ...]:
    """Return the rows of a heat map.

    Args:
        rows: of a result.
        first: path of the layer where the two diverge; None if they do not, or not in a layer. A
            layer that is called several times diverges in its first call.
        found: kinds of root causes, by path.
    """
    places = [place for place, row in enumerate(rows) if row.path == first]
    return tuple(_layer(row, found, here=place in places[:1]) for place, row in enumerate(rows))


def _layer(row: LayerDistance, found: Mapping[str, str], *, here: bool) -> Layer:
    path, own = row.path, row.own_path
    notes = [": ".join(filter(None, ("first" if here else "", found.get(path, ""))))]
    notes += ["no partner"] if path and not own else []
    return Layer(
        path=path or own or "(model)",
        own_path=own if path and own != path else "",
        type=row.type,
        cells=tuple(_cell((name, brief), getattr(row, key)) for key, name, brief in QUANTITIES),
        first=here,
        note=", ".join(filter(None, notes)),
    )


def _cell(names: tuple[str, str], found: Distance | None) -> Cell:
    if found is None:
        return Cell()
    numbers = (
        _size(found.relative),
        _size(found.tolerance),
        NONE if isnan(found.cosine) else f"{found.cosine:.6f}",
        _size(found.largest),
        format_percent(found.off),
        _ulp(found.ulp),
    )
    told = [f"{names[0]}: {numbers[0]}", f"tolerance {numbers[1]}", f"cosine {numbers[2]}"]
    told += [f"largest {numbers[3]}", f"off by 0.1 % {numbers[4]}", f"ULP {numbers[5]}"]
    return Cell(
        name=names[0],
        brief=names[1],
        text=short_power(found.relative),
        level=sum(not found.relative <= limit for limit in LIMITS),
        beyond=found.beyond,
        excess=_excess(found.relative, found.tolerance, beyond=found.beyond),
        tip=", ".join(told) + (", beyond noise" if found.beyond else ""),
        numbers=numbers,
    )


def _excess(relative: float, tolerance: float, *, beyond: bool) -> float:
    """Return how many times the tolerance it is; what is beyond comes before what is not."""
    if not beyond:
        return min(relative / tolerance, 1.0) if isfinite(tolerance) and tolerance > 0 else 0.0
    return relative / tolerance if isfinite(relative) and tolerance > 0 else inf


def _size(size: float) -> str:
    return NONE if isnan(size) else format_difference(size)


def _ulp(size: float) -> str:
    if isnan(size):
        return NONE
    return f"{size:.0f}" if size < 1e5 else short_power(size)
