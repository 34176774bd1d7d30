"""One step, layer by layer, as the reader sees it: heat maps, and cards of the root causes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import TYPE_CHECKING

from mpcore.tools.report.cells import layer_rows
from mpcore.tools.report.layers import RootCause
from mpcore.tools.report.numbers import format_times, short_power
from mpcore.tools.report.view import grouped, pair_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.report.cells import Cell, Layer
    from mpcore.tools.report.layers import Divergence, Layers
    from mpcore.tools.report.result import Result
    from mpcore.tools.report.view import PairView

__all__ = [
    "Card",
    "Depth",
    "RootCauseView",
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
class RootCauseView(RootCause):
    """A root cause; ``layer`` is empty outside of layers, ``own_layer`` where it is the same."""

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
    """One pair, one step, layer by layer.

    Attributes:
        key: id of its heat map in the page.
        pair: the pair.
        verdict: of this step: ``"same"``, ``"different"``, ``"too noisy to tell"`` or
            ``"not looked at"``.
        reason: of the verdict; may be empty.
        exact: which one is wrong, by the same step in float64, in words; may be empty.
        how: how it was measured, in words.
        layers: in forward order.
        ops: inside the layer where they diverge; may be empty.
        divergence: where the two diverge first, in words; empty if they do not.
        root_causes: best first; one of kind ``"unknown"`` where nothing explains it.
    """

    key: str
    pair: PairView
    verdict: str
    reason: str
    exact: str
    how: str
    layers: tuple[Layer, ...]
    ops: tuple[Layer, ...]
    divergence: str
    root_causes: tuple[RootCauseView, ...]

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
        """Return what says most: all of the layer where they diverge; else the worst cell."""
        cells = [(row, cell) for row in self.layers for cell in row.cells if cell.numbers]
        first = [(row, cell) for row, cell in cells if row.first]
        return first or sorted(cells, key=lambda found: found[1].excess, reverse=True)[:1]


@dataclass(frozen=True)
class Card:
    """One root cause and every pair that has it; the words are those of the first."""

    depth: Depth
    cause: RootCauseView
    others: tuple[RootCauseView, ...]
    pairs: tuple[PairView, ...]

    @property
    def look(self) -> str:
        """Class of its badge."""
        return self.cause.look


def depth_views(result: Result) -> list[Depth]:
    """Return every pair of a result that was looked at layer by layer, in its order."""
    pairs = zip(result.pairs, pair_views(result), strict=True)
    return [
        _depth(f"depth-{place}", view, pair.depth)
        for place, (pair, view) in enumerate(pairs)
        if pair.depth
    ]


def cards(depths: Sequence[Depth]) -> list[Card]:
    """Return why pairs diverge: one card for each root cause, however many pairs have it."""
    diverging = [depth for depth in depths if depth.root_causes]
    groups = grouped(diverging, lambda depth: "\n".join(_identity(depth.root_causes[0])))
    return [
        Card(
            group[0],
            group[0].root_causes[0],
            group[0].root_causes[1:],
            tuple(depth.pair for depth in group),
        )
        for group in groups.values()
    ]


def _identity(cause: RootCauseView) -> tuple[str, ...]:
    return cause.kind, cause.layer, cause.phase, cause.fix


def _depth(key: str, pair: PairView, found: Layers) -> Depth:
    first, causes = found.first, tuple(_cause(cause) for cause in found.root_causes)
    if first and not causes:
        unknown = RootCause("unknown", first.layer, first.own_layer, first.phase)
        causes = (_cause(unknown),)
    kinds: dict[str, str] = {}
    for cause in causes:
        if cause.layer and cause.kind != "unknown":
            kinds.setdefault(cause.layer, cause.kind)
    verdict, _, reason = found.verdict.partition(": ")
    exact = found.exact.why if found.exact else ""
    return Depth(
        key=key,
        pair=pair,
        verdict=verdict,
        reason=reason,
        exact=exact[:1].upper() + exact[1:],
        how=found.how,
        layers=layer_rows(found.rows, first.layer if first else None, kinds),
        ops=layer_rows(found.ops, None, {}),
        divergence=_divergence(first) if first else "",
        root_causes=causes,
    )


def _cause(cause: RootCause) -> RootCauseView:
    layer, own = _names(cause)
    return replace(RootCauseView(**vars(cause)), layer=layer, own_layer=own)


def _names(found: RootCause | Divergence) -> tuple[str, str]:
    """Return the layer and its other name where it has one; words in brackets are no layers."""
    if found.layer.startswith("("):
        return "", ""
    return found.layer, "" if found.own_layer == found.layer else found.own_layer


def _divergence(first: Divergence) -> str:
    """Return where two runs diverge, such as ``"in the forward pass at features.1: ..."``."""
    words = _PHASES.get(first.phase, first.phase)
    layer, own = _names(first)
    if layer:
        words += f" at {layer}" + (f" ({own})" if own else "")
    size, noise = first.relative, first.tolerance
    if isnan(size) or size == 0:  # the settings differ, the numbers do not
        return words
    words += f": {short_power(size, 1)} apart"
    if isfinite(noise) and noise > 0:
        words += f", noise explains {short_power(noise, 1)} ({format_times(size / noise)} that)"
    return words
