"""From the evidence of two sides to a verdict: do they agree, where do they part, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from math import isinf
from typing import TYPE_CHECKING, Any

from mpcore.tools.divergence import hypotheses
from mpcore.tools.divergence.dtypes import layer_facts, op_facts
from mpcore.tools.divergence.first import LOSS, First, first_backward, first_forward, first_update
from mpcore.tools.divergence.hypotheses.factor import from_factor
from mpcore.tools.divergence.hypotheses.flushed import from_flushed
from mpcore.tools.divergence.hypotheses.structure import gradient_factor, parts
from mpcore.tools.divergence.kinks import BENT, kink
from mpcore.tools.divergence.noise import Tolerances
from mpcore.tools.divergence.ops import inside
from mpcore.tools.divergence.root_cause import Case, RootCause
from mpcore.tools.divergence.rows import Match, Row, tabulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.tools.divergence.evidence import Evidence

__all__ = ["Verdict", "find", "which_is_wrong"]

_PART = 0.02  # relative: gradients of a batch in parts, and of the whole
_HANDED_ON = 2.0  # times the distance that a kink makes: so far may it go in the layers before it
_NOISY = 0.5  # relative: a tolerance this wide tells nothing about a loss


@dataclass(frozen=True)
class Verdict:
    """What two sides have to do with each other.

    Attributes:
        verdict: ``"same"``, ``"same: but ..."`` where an activation is proved to have fallen to
            the other side, ``"different: ..."`` or ``"too noisy to tell: ..."``.
        rows: one a layer, in forward order.
        first: where they part first; None if they do not.
        root_causes: the best for the first divergence, then those behind it.
        how: in one sentence how it was found.
        ops: inside of the layer that parts first, one row an op, where it could be looked into.
    """

    verdict: str
    rows: tuple[Row, ...]
    first: First | None
    root_causes: tuple[RootCause, ...]
    how: str
    ops: tuple[Row, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether noise explains all differences."""
        return self.verdict.startswith("same")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "verdict": self.verdict,
            "rows": [row.to_dict() for row in self.rows],
            "first": None if self.first is None else self.first.to_dict(),
            "root_causes": [cause.to_dict() for cause in self.root_causes],
            "how": self.how,
            "ops": [row.to_dict() for row in self.ops],
        }


def find(
    reference: Evidence,
    own: Evidence,
    closer: Callable[[frozenset[str]], tuple[Evidence, Evidence]] | None = None,
    *,
    later: bool = True,
) -> Verdict:
    """Return where ``own`` parts from ``reference``, and the likely causes.

    Args:
        reference: what ``collect`` returned for one side.
        own: the same for the other, from the same weights and batch.
        closer: called with paths of layers (of both sides); returns the two sides collected once
            more, those layers with whole tensors. Without it causes that show in numbers alone
            are not named.
        later: whether the moves of the steps behind the first are judged too; runs that are
            compared step by step judge each where it is the first.
    """
    tolerances = Tolerances(reference, own)
    table = tabulate(reference, own, tolerances, later=later)
    facts = layer_facts(reference, own, [match.pair for match in table.matches])
    case = Case(
        reference,
        own,
        tolerances,
        table,
        facts,
        op_facts(reference, own),
        closer=closer,
        later=later,
    )
    causes = hypotheses.about_inputs(case)
    first, kinks = _beyond_kinks(case, causes)
    case.first = first
    causes += hypotheses.about(case)
    first = _placed(first, causes)
    ops = _ops(case, first)
    rows = tuple(table.rows())
    if causes and causes[0].kind == "unknown":
        causes[0] = causes[0].with_evidence(*_differing(ops))
    if causes and first is not None and first.phase == "forward":
        causes[0] = causes[0].with_evidence(*_alone(rows, first))
    return Verdict(
        _verdict(case, first, causes, kinks),
        rows,
        first,
        tuple(causes),
        _how(case),
        ops,
    )


def _ops(case: Case, first: First | None) -> tuple[Row, ...]:
    if first is None or first.phase != "forward":
        return ()
    known = {match.path for match in case.table.matches if match.pair.own is not None}
    if first.layer not in known:
        return ()
    sides = case.look(frozenset({first.layer, first.own_layer}))
    if sides is None:
        return ()
    return inside(*sides, (first.layer, first.own_layer), first.tolerance)


def _alone(rows: tuple[Row, ...], first: First) -> list[str]:
    """Return in words the layers inside of the one that parts that only one side has."""
    found = []
    for row in rows:
        home = first.layer if row.lone == "reference" else first.own_layer
        inside = row.lone and row.path != home and f"{row.path}.".startswith(home and f"{home}.")
        if inside and row.category != "container":
            who = "the reference" if row.lone == "reference" else "this side"
            found.append(f"only {who} has the layer {row.path} ({row.type})")
    return found[:3]


def _differing(ops: tuple[Row, ...]) -> list[str]:
    """Return in words the first op that differs, of those inside of the layer that parts."""
    for row in ops:
        if row.lone:
            who = "the reference" if row.lone == "reference" else "this side"
            return [f"inside, only {who} has the op {row.type} ({row.path})"]
        if row.output is not None and row.output.beyond:
            away = row.output.found.relative
            return [f"inside, the first op that differs is {row.type} ({row.path}), by {away:.1e}"]
    return []


def _beyond_kinks(case: Case, inputs: list[RootCause]) -> tuple[First | None, list[str]]:
    """Return where they part but for activations at their kink, and the proofs of those."""
    first, proofs, seen = _first(case, inputs), list[str](), set[int]()
    scales = case.reference.inspection.scale, case.own.inspection.scale
    while first is not None and first.phase == "backward" and first.match is not None:
        at = case.table.place(first.match)
        if at is None or at in seen or first.layer != first.match.path:
            break
        seen.add(at)
        told = _kink(case, first.match, scales)
        if not told:
            break
        proofs.append(f"{first.layer} ({first.match.type}): {told}")
        # What lies before it got another gradient from it, and hands that on.
        case.table = case.table.allowing(at, _HANDED_ON * first.relative)
        first = _first(case, inputs)
    return first, proofs


def _kink(case: Case, match: Match, scales: tuple[float, float]) -> str:
    """Return the proof that a layer, or a function behind it, met its kink; ``""`` for none."""
    bent = match.pair.reference is not None and match.pair.reference.category in BENT
    quantity = "grad_inputs" if bent else "grad_outputs"
    parted = match.seen.get(quantity) if match.parts(quantity) else None
    sides = case.whole(match) if parted is not None else None
    return "" if parted is None or sides is None else kink(sides, scales, parted.tolerance)


def _first(case: Case, inputs: list[RootCause]) -> First | None:
    if inputs:
        return First("input", inputs[0].layer, inputs[0].own_layer)
    if max(parts(case)) > 1:  # calls of parts and of the whole are not to be put side by side
        factor = gradient_factor(case)
        if factor is not None and abs(factor - 1) > _PART:
            return First("loss", LOSS, LOSS, abs(factor - 1), _PART)
        return first_update(case.table)
    found = first_forward(case.table, case.tolerances, case.facts)
    if found is not None:
        return found
    inside = next((fact.path for fact in case.ops if fact.path != LOSS), None)
    if inside is not None:
        return First("forward", inside, inside)
    relative, tolerance = case.table.loss
    if not relative <= tolerance or any(fact.path == LOSS for fact in case.ops):
        return First("loss", LOSS, LOSS, relative, tolerance)
    return first_backward(case.table) or _within_noise(case) or first_update(case.table)


def _within_noise(case: Case) -> First | None:
    """Return a layer whose gradients lack what is small, or are longer, though within noise."""
    cause = next(chain(from_flushed(case), from_factor(case)), None)
    if cause is None:
        return None
    match = case.table.match(cause.layer)
    return First("backward", cause.layer, cause.own_layer, match=match)


def _placed(first: First | None, causes: list[RootCause]) -> First | None:
    """Return where they part, now that it is known why."""
    best = next(iter(causes), None)
    if best is None:
        return first
    if first is None:
        return First(best.phase, best.layer, best.own_layer)
    if first.phase == "backward" and best.phase == "loss":
        return replace(first, phase="loss", layer=best.layer, own_layer=best.own_layer)
    if first.phase in ("update", "backward") and best.phase == "update":
        return replace(first, phase="update", layer=best.layer, own_layer=best.own_layer)
    return first


def _verdict(case: Case, first: First | None, causes: list[RootCause], kinks: list[str]) -> str:
    tolerance = case.tolerances.loss()
    if first is None and not tolerance <= _NOISY:
        return "too noisy to tell: noise moves the loss by half"
    if first is None:
        return f"same: but at a kink, {'; '.join(kinks)}" if kinks else "same"
    cause = next((f", {c.kind}" for c in causes), "")
    where = first.layer or "the model"
    if not first.tolerance or first.relative <= first.tolerance:
        return f"different: {first.phase}, {where}{cause}"
    ratio = first.relative / first.tolerance
    size = "without bound" if isinf(ratio) else f"{ratio:.3g}x"
    return f"different: {first.phase}, {where}, beyond noise by {size}{cause}"


def _how(case: Case) -> str:
    runs = len(case.reference.moved) + len(case.own.moved)
    closer = "with" if case.closer else "without"
    return (
        f"one batch from the same weights, {len(case.table.matches)} layer calls side by side; "
        f"tolerances from {runs} passes with moved weights; {closer} whole tensors there"
    )


def which_is_wrong(exact: Evidence, a: Evidence, b: Evidence) -> str:
    """Return which of two sides lies beyond its tolerance of an exact third: ``a``, ``b``, ...

    Args:
        exact: the same model, weights and batch in float64 (or in another trusted way).
        a: one side.
        b: the other.

    Returns:
        ``"a"``, ``"b"``, ``"both"`` or ``"neither"``.
    """
    wrong = [name for name, side in (("a", a), ("b", b)) if _wrong(exact, side)]
    return {0: "neither", 1: "".join(wrong)}.get(len(wrong), "both")


def _wrong(exact: Evidence, side: Evidence) -> bool:
    tolerances = Tolerances(exact, side)
    table = tabulate(exact, side, tolerances)
    forward = first_forward(table, tolerances, {})
    relative, tolerance = table.loss
    return forward is not None or not relative <= tolerance or first_backward(table) is not None
