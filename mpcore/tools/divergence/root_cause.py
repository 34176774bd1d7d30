"""What a cause is, and what everybody who looks for one is given."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import check_choice
from mpcore.tools.divergence.align import layer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.divergence.dtypes import DtypeFact, OpFact
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.first import First
    from mpcore.tools.divergence.noise import Tolerances
    from mpcore.tools.divergence.rows import Match, Table
    from mpcore.tools.inspection import LayerCall

__all__ = ["CONFIDENCES", "KINDS", "PHASES", "Case", "RootCause"]

KINDS = (
    "dtype rule",
    "op list",
    "missing cast",
    "eps",
    "momentum",
    "initialisation",
    "layout",
    "padding",
    "reduction dtype",
    "reduction order",
    "activation variant",
    "loss reduction",
    "label",
    "optimizer constants",
    "schedule",
    "clipping",
    "tied weights",
    "known difference",
    "scaler rule",
    "random state",
    "data order",
    "other setting",
    "noise",
    "unknown",
)

PHASES = ("input", "forward", "loss", "backward", "update", "scaler")

CONFIDENCES = ("sure", "likely", "possible")


@dataclass(frozen=True)
class RootCause:
    """Why two sides part.

    Attributes:
        kind: one of ``KINDS``.
        layer: path in the reference, or a word in brackets; see ``First``.
        own_layer: path in the other side.
        phase: one of ``PHASES``.
        evidence: sentences with numbers.
        fix: what to change, in one line.
        confidence: one of ``CONFIDENCES``.

    Raises:
        PolicyError: a word that is none of those.
    """

    kind: str
    layer: str
    own_layer: str
    phase: str
    evidence: tuple[str, ...]
    fix: str
    confidence: str = "likely"

    def __post_init__(self) -> None:
        """Refuse words that no report knows."""
        check_choice("kind", self.kind, KINDS)
        check_choice("phase", self.phase, PHASES)
        check_choice("confidence", self.confidence, CONFIDENCES)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {**asdict(self), "evidence": list(self.evidence)}

    def with_evidence(self, *sentences: str, confidence: str = "") -> RootCause:
        """Return a copy with more evidence."""
        return replace(
            self,
            evidence=(*self.evidence, *sentences),
            confidence=confidence or self.confidence,
        )


@dataclass
class Case:
    """One comparison, as far as it has come.

    Attributes:
        reference: evidence of the reference.
        own: evidence of the other side.
        tolerances: what noise explains.
        table: all distances.
        facts: layers whose dtypes differ, by path of the reference.
        ops: functions outside of layers whose dtypes differ.
        first: where they part; None if they do not.
        closer: brings both sides again with whole tensors of some layers; None if nobody can.
        later: whether the steps behind the first are judged too.
    """

    reference: Evidence
    own: Evidence
    tolerances: Tolerances
    table: Table
    facts: dict[str, DtypeFact]
    ops: list[OpFact]
    first: First | None = None
    closer: Callable[[frozenset[str]], tuple[Evidence, Evidence]] | None = None
    later: bool = True
    _looked: dict[frozenset[str], tuple[Evidence, Evidence]] = field(default_factory=dict)

    def look(self, paths: frozenset[str]) -> tuple[Evidence, Evidence] | None:
        """Return both sides once more, looked at closely in some layers; None without a closer."""
        if self.closer is None:
            return None
        if paths not in self._looked:
            self._looked[paths] = self.closer(paths)
        return self._looked[paths]

    def whole(self, match: Match) -> tuple[LayerCall, LayerCall] | None:
        """Return the two calls with whole tensors; None where they cannot be had."""
        pair = match.pair
        if pair.reference is None or pair.own is None:
            return None
        if all(_has_values(call) for call in (pair.reference, pair.own)):
            return pair.reference, pair.own
        sides = self.look(frozenset({pair.reference.path, pair.own.path}))
        if sides is None:
            return None
        found = []
        for side, call, old in zip(
            sides, (pair.reference, pair.own), (self.reference, self.own), strict=True
        ):
            number = _number(old, call)
            calls = [c for c in side.inspection.calls if c.path == call.path and c.category != "op"]
            if number >= len(calls) or not _has_values(calls[number]):
                return None
            found.append(calls[number])
        return found[0], found[1]

    def arrays(self, match: Match) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays of a layer before the first step, of both sides; empty for none."""
        pair, both = match.pair, []
        for call, side in ((pair.reference, self.reference), (pair.own, self.own)):
            weights = side.weights[0] if side.weights else []
            both.append(_arrays_of(weights, call.path) if call else {})
        return both[0], both[1]


def _arrays_of(weights: list[LayerWeights], path: str) -> dict[str, npt.NDArray[Any]]:
    exact = [w for w in weights if w.path == path]
    inside = exact or [w for w in weights if path and layer_of(w.path, [path]) == path]
    return dict(inside[0].arrays) if inside else {}


def _has_values(call: LayerCall) -> bool:
    return bool(call.outputs) and all(x.values is not None for x in (*call.inputs, *call.outputs))


def _number(side: Evidence, call: LayerCall) -> int:
    """Return how many calls of the same layer came before this one."""
    same = [c for c in side.inspection.calls if c.path == call.path and c.category != "op"]
    return next((i for i, c in enumerate(same) if c is call), 0)
