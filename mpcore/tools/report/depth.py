"""One step in depth, as the reader sees it: heat maps of the layers, and cards of the causes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from mpcore.tools.report.cells import layer_rows
from mpcore.tools.report.numbers import format_times, number, short_power
from mpcore.tools.report.view import grouped, pair_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.report.cells import Cell, Layer
    from mpcore.tools.report.view import PairView

__all__ = [
    "Card",
    "Cause",
    "Depth",
    "cards",
    "depth_views",
]

_LOOKS = {"same": "good", "different": "bad"}  # classes of verdicts; others are neither
_PHASES = {
    "input": "in what goes into the model",
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "update": "in the optimizer's update",
    "scaler": "in the loss scale",
}


@dataclass(frozen=True)
class Cause:
    """One cause, as the result has it; ``own_layer`` is empty where it is the same."""

    kind: str
    layer: str
    own_layer: str
    phase: str
    evidence: tuple[str, ...]
    cure: str
    confidence: str

    @property
    def look(self) -> str:
        """Class of its badge: what may be noise is not as bad."""
        return "noisy" if self.kind == "noise" or self.confidence == "possible" else "bad"

    @property
    def where(self) -> str:
        """Return the layer and the phase, in words."""
        phase = _PHASES.get(self.phase, self.phase)
        return f"{self.layer}, {phase}" if self.layer else phase


@dataclass(frozen=True)
class Depth:
    """One pair, one step in depth.

    Attributes:
        key: id of its heat map in the page.
        pair: the pair.
        verdict: of this step: ``"same"``, ``"different"``, ``"too noisy to tell"`` or
            ``"not looked at"``.
        reason: of the verdict; may be empty.
        exact: which side is wrong, by the same step in float64, in words; may be empty.
        how: how it was measured, in words.
        layers: in forward order.
        ops: inside the layer that parts; may be empty.
        parting: where the two part first, in words; empty if they do not.
        causes: best first; one of kind ``"unknown"`` where they part and nothing explains it.
    """

    key: str
    pair: PairView
    verdict: str
    reason: str
    exact: str
    how: str
    layers: tuple[Layer, ...]
    ops: tuple[Layer, ...]
    parting: str
    causes: tuple[Cause, ...]

    @property
    def is_wide(self) -> bool:
        """Whether its names want the width of the page."""
        return any(len(layer.path) > 24 for layer in self.layers)

    @property
    def look(self) -> str:
        """Class of its badge."""
        return _LOOKS.get(self.verdict, "noisy")

    @property
    def telling(self) -> list[tuple[Layer, Cell]]:
        """Return what says most: all of the first layer that parts; else the worst cell."""
        cells = [(row, cell) for row in self.layers for cell in row.cells if cell.numbers]
        first = [(row, cell) for row, cell in cells if row.first]
        return first or sorted(cells, key=lambda found: found[1].excess, reverse=True)[:1]


@dataclass(frozen=True)
class Card:
    """One cause and every pair that has it; the words are those of the first."""

    depth: Depth
    cause: Cause
    others: tuple[Cause, ...]
    pairs: tuple[PairView, ...]

    @property
    def look(self) -> str:
        """Class of its badge."""
        return self.cause.look


def depth_views(result: dict[str, Any]) -> list[Depth]:
    """Return every pair of a result that was looked at in depth, in its order."""
    pairs = zip(result.get("pairs") or [], pair_views(result), strict=True)
    return [
        _depth(f"depth-{place}", view, pair["depth"])
        for place, (pair, view) in enumerate(pairs)
        if pair.get("depth")
    ]


def cards(depths: Sequence[Depth]) -> list[Card]:
    """Return what the pairs part by: one card for each cause, however many pairs have it."""
    parting = [depth for depth in depths if depth.causes]
    groups = grouped(parting, lambda depth: "\n".join(_identity(depth.causes[0])))
    return [
        Card(
            group[0],
            group[0].causes[0],
            group[0].causes[1:],
            tuple(depth.pair for depth in group),
        )
        for group in groups.values()
    ]


def _identity(cause: Cause) -> tuple[str, ...]:
    return cause.kind, cause.layer, cause.phase, cause.cure


def _depth(key: str, pair: PairView, depth: dict[str, Any]) -> Depth:
    first = depth.get("first") or {}
    causes = tuple(_cause(cause) for cause in depth.get("causes") or [])
    if first and not causes:
        causes = (_cause({**first, "kind": "unknown"}),)
    kinds: dict[str, str] = {}
    for cause in causes:
        if cause.layer and cause.kind != "unknown":
            kinds.setdefault(cause.layer, cause.kind)
    verdict, _, reason = (depth.get("verdict") or "").partition(": ")
    exact = (depth.get("exact") or {}).get("why") or ""
    return Depth(
        key=key,
        pair=pair,
        verdict=verdict,
        reason=reason,
        exact=exact[:1].upper() + exact[1:],
        how=depth.get("how") or "",
        layers=layer_rows(depth.get("rows") or [], first.get("layer"), kinds),
        ops=layer_rows(depth.get("ops") or [], None, {}),
        parting=_parting(first) if first else "",
        causes=causes,
    )


def _cause(cause: dict[str, Any]) -> Cause:
    layer, own = _names(cause)
    return Cause(
        kind=cause["kind"],
        layer=layer,
        own_layer=own,
        phase=cause.get("phase") or "",
        evidence=tuple(cause.get("evidence") or ()),
        cure=cause.get("cure") or "",
        confidence=cause.get("confidence") or "",
    )


def _names(found: dict[str, Any]) -> tuple[str, str]:
    """Return the layer and its other name where it has one; words in brackets are no layers."""
    layer, own = found.get("layer") or "", found.get("own_layer") or ""
    if layer.startswith("("):
        return "", ""
    return layer, "" if own == layer else own


def _parting(first: dict[str, Any]) -> str:
    """Return where two sides part, such as ``"in the forward pass at features.1: ..."``."""
    words = _PHASES.get(first.get("phase") or "", first.get("phase") or "")
    layer, own = _names(first)
    if layer:
        words += f" at {layer}" + (f" ({own})" if own else "")
    relative, band = number(first.get("relative")), number(first.get("band"))
    if isnan(relative) or relative == 0:  # the settings differ, the numbers do not
        return words
    words += f": {short_power(relative, 1)} apart"
    if isfinite(band) and band > 0:
        words += f", noise explains {short_power(band, 1)} ({format_times(relative / band)} that)"
    return words
