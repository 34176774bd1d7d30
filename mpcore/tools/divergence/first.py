"""Where two sides part first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.distance import is_float
from mpcore.tools.divergence.settings import QUIET, differing
from mpcore.tools.divergence.ties import settled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.tools.divergence.dtypes import DtypeFact
    from mpcore.tools.divergence.noise import Tolerances
    from mpcore.tools.divergence.rows import Match, Table
    from mpcore.tools.inspection import LayerCall, TensorSummary

__all__ = ["LOSS", "First", "first_backward", "first_forward", "first_update"]

LOSS = "(loss)"
_MASK = 0.5  # of the peak: scores below that are no mask
_GIVEN = 0.2  # of what a softmax makes otherwise: so much in its scores explains it


@dataclass(frozen=True)
class First:
    """The first place where two sides part.

    Attributes:
        phase: ``"input"``, ``"forward"``, ``"loss"``, ``"backward"``, ``"update"`` or
            ``"scaler"``.
        layer: path in the reference; ``"batch[1]"``, ``"(loss)"``, ``"(optimizer)"`` or
            ``"(loss scale)"`` where it is none.
        own_layer: path in the other side.
        relative: relative distance there; 0 where the numbers agree and the settings do not.
        tolerance: what noise explains there.
        match: the aligned call, if it is one.
    """

    phase: str
    layer: str
    own_layer: str
    relative: float = 0.0
    tolerance: float = 0.0
    match: Match | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON; numbers that are not finite as text."""
        sizes = {"relative": self.relative, "tolerance": self.tolerance}
        plain = {n: float(v) if isfinite(v) else str(v) for n, v in sizes.items()}
        return {"phase": self.phase, "layer": self.layer, "own_layer": self.own_layer, **plain}


def first_forward(
    table: Table, tolerances: Tolerances, facts: Mapping[str, DtypeFact]
) -> First | None:
    """Return the first layer that makes something else of what it was given alike.

    A layer whose input already differs though none before it parted was given it by code
    between the layers: the container around it is named then.
    """
    for number, match in enumerate(table.matches):
        if match.container:
            continue
        if match.pair.reference is None or match.pair.own is None:
            if _matters(table, number):
                return _at("forward", match, "outputs")
            continue
        if match.parts("inputs"):
            return _between(table, number)
        if _parts_here(match, tolerances, facts):
            if _masked(match):
                return _between(table, number)
            return _at("forward", match, "outputs")
    closed = [m for m in table.matches if m.container and m.parts("outputs")]
    # Containers begin before what is in them: the last to begin is the innermost.
    return _at("forward", closed[-1], "outputs") if closed else None


def _parts_here(match: Match, tolerances: Tolerances, facts: Mapping[str, DtypeFact]) -> bool:
    random = [tolerances.random(place, side) for side, place in enumerate(match.pair.places)]
    if random[0] != random[1]:
        return True
    if match.parts("outputs"):
        return True
    if match.path in facts:
        return True
    return not match.same_bits("outputs") and bool(set(differing(match.pair)) & set(QUIET))


def _masked(match: Match) -> bool:
    """Return whether a softmax was given other scores, which a mask of large numbers outweighs.

    What a softmax makes is off, relative, by no more than twice what it is given, absolute.
    """
    call, own = _calls(match)
    went = match.seen.get("outputs")
    if call is None or own is None or went is None or call.category != "softmax":
        return False
    given = [x for c in (call, own) for x in c.inputs[:1] if is_float(x)]
    if len(given) < 2 or given[0].sample.shape != given[1].sample.shape:
        return False
    scores, others = (x.sample.astype(np.float64) for x in given)
    small = np.abs(scores) < _MASK * given[0].peak
    if small.all() or not small.any():
        return False
    apart = float(np.sqrt(np.mean(np.square(scores - others)[small])))
    return apart > _GIVEN * went.found.relative


def _matters(table: Table, number: int) -> bool:
    """Return whether a layer that one side lacks changes numbers: the next input differs."""
    lone = table.matches[number].pair.reference or table.matches[number].pair.own
    if lone is None:
        return False
    if lone.category == "dropout":
        return any(m.parts("inputs") or m.parts("outputs") for m in table.matches[number + 1 :])
    later = [m for m in table.matches[number + 1 :] if not m.container and m.seen]
    return bool(later) and later[0].parts("inputs")


def _between(table: Table, number: int) -> First:
    """Return the container whose own code made an input differ."""
    match = table.matches[number]
    path = match.path
    # A container that is through, and was given the same: what it hands on is its own work.
    for earlier in reversed(table.matches[:number]):
        inside = not earlier.path or path.startswith(f"{earlier.path}.")
        if (
            earlier.container
            and not inside
            and earlier.parts("outputs")
            and not earlier.parts("inputs")
        ):
            return _at("forward", earlier, "outputs")
    before = [m for m in table.matches[:number] if not m.container and m.seen]
    if before and before[-1].seen.get("outputs") is None and before[-1].pair.reference is not None:
        return _at("forward", before[-1], "outputs")  # what it handed on could not be compared
    around = [m for m in table.matches[:number] if m.container and _holds(m.path, path)]
    home = around[-1] if around else match
    seen = match.seen["inputs"]
    call = home.pair.own or match.pair.own
    relative, tolerance = (seen.found.relative, seen.tolerance) if seen else (0.0, 0.0)
    return First("forward", home.path, call.path if call else "", relative, tolerance, match)


def _holds(container: str, path: str) -> bool:
    return not container or path.startswith(f"{container}.")


def first_backward(table: Table) -> First | None:
    """Return the last layer that hands down another gradient than it got alike."""
    leaves = [m for m in reversed(table.matches) if not m.container and m.seen]
    lost = any(d.beyond for d in table.grads.values())
    passed, waiting = settled(leaves), None
    for place, match in enumerate(leaves):
        if place in passed:
            continue
        if _used_by_one_loss(table, match):
            return _in_the_loss(match, "grad_outputs")
        if match.parts("grad_outputs"):
            return _at("backward", match, "grad_outputs")
        if match.parts("grad_inputs"):
            if _goes_to_the_loss(table, match):
                return _in_the_loss(match, "grad_inputs")
            if _shared(table, leaves, place):
                waiting = waiting or _at("backward", match, "grad_inputs")
                continue
            return _at("backward", match, "grad_inputs")
        if lost and _stops(match):
            still = _still(table, leaves[place + 1 :], match)
            return _at("backward", still or match, "grad_inputs")
        seen = [d for path, d in table.grads.items() if _owns(match.path, path)]
        parted = [d for d in seen if d.beyond]
        if parted:
            return _at("backward", match, "", parted[0].found.relative, parted[0].tolerance)
    lone = [(path, d) for path, d in table.grads.items() if d.beyond]
    if lone:
        path, distance = lone[-1]
        return First("backward", path, path, distance.found.relative, distance.tolerance)
    return waiting


def _shared(table: Table, leaves: Sequence[Match], place: int) -> bool:
    """Return whether another layer may have put the difference into a gradient that both share.

    What several layers are given has one gradient, the sum of theirs. It is another layer's if
    the parameters here get the same gradient on both sides, and those of another one do not.
    """
    match = leaves[place]
    call = match.pair.reference
    if call is None or any(d.beyond for p, d in table.grads.items() if _owns(match.path, p)):
        return False
    given = {x.digest for x in call.inputs if x is not None}
    return any(
        other.pair.reference is not None
        and other.path != match.path
        and given & {x.digest for x in other.pair.reference.inputs if x is not None}
        and any(d.beyond for p, d in table.grads.items() if _owns(other.path, p))
        for other in leaves[place + 1 :]
    )


def _in_the_loss(match: Match, quantity: str) -> First:
    return replace(_at("backward", match, quantity), layer=LOSS, own_layer=LOSS)


def _goes_to_the_loss(table: Table, match: Match) -> bool:
    """Return whether the function of the loss may have put the difference into a gradient.

    It was given the same tensor, as an output of the model, and the parameters here get the same
    gradient on both sides.
    """
    call = match.pair.reference
    seen = [d for path, d in table.grads.items() if _owns(match.path, path)]
    if call is None or not seen or any(d.beyond for d in seen):
        return False
    return bool(_digests(call.inputs) & _told(table))


def _used_by_one_loss(table: Table, match: Match) -> bool:
    """Return whether one side alone makes a gradient for an output of the model.

    It is an output alone: no other layer was given it.
    """
    call, own = _calls(match)
    if call is None or own is None or _live(call) == _live(own):
        return False
    made = _digests(call.outputs)
    others = (m.pair.reference for m in table.matches if not m.container)
    used = any(made & _digests(c.inputs) for c in others if c is not None)
    return not used and bool(made & _told(table))


def _live(call: LayerCall) -> bool:
    return any(g is not None and g.norm > 0 for g in call.grad_outputs)


def _told(table: Table) -> set[int]:
    """Return the outputs of the model: what the loss is given."""
    match = next(iter(table.matches), None)
    call = match.pair.reference if match is not None and match.container else None
    return _digests(call.outputs) if call is not None and _is_whole(table, call.path) else set()


def _is_whole(table: Table, path: str) -> bool:
    return all(_holds(path, match.path) or match.path == path for match in table.matches)


def _digests(tensors: Sequence[TensorSummary | None]) -> set[int]:
    return {x.digest for x in tensors if x is not None}


def _still(table: Table, before: Sequence[Match], match: Match) -> Match | None:
    """Return the layer before one that hands no gradient down, if that is for its own weights.

    A layer behind the batch that is frozen needs no gradient: what follows it hands none down.
    """
    made = before[0] if before else None
    calls = (made.pair.reference, made.pair.own) if made else (None, None)
    given = [{x.digest for x in c.inputs} if c else set() for c in _calls(match)]
    went = [{x.digest for x in c.outputs} if c else set() for c in calls]
    if made is None or not all(a & b for a, b in zip(given, went, strict=True)):
        return None
    if any(g is not None for c in calls if c is not None for g in c.grad_inputs):
        return None  # a gradient passes it on one side: it is no first layer
    lost = any(d.beyond for p, d in table.grads.items() if _owns(made.path, p))
    return made if lost else None


def _calls(match: Match) -> tuple[LayerCall | None, LayerCall | None]:
    return match.pair.reference, match.pair.own


def _stops(match: Match) -> bool:
    """Return whether one side alone hands no gradient down."""
    calls = match.pair.reference, match.pair.own
    handed = [call is not None and any(g is not None for g in call.grad_inputs) for call in calls]
    got = [call is not None and any(g is not None for g in call.grad_outputs) for call in calls]
    return all(got) and handed[0] != handed[1]


def _owns(layer: str, path: str) -> bool:
    return path.startswith(layer) and not path[len(layer) :][:1].isalnum() and bool(layer)


def first_update(table: Table) -> First | None:
    """Return the first layer whose parameters or statistics moved another way."""
    for kind in (table.updates, table.statistics, table.later, table.biased):
        for path, distance in kind.items():
            if distance.beyond:
                own = next((b.path for a, b in table.pairs if a.path == path), "")
                return First("update", path, own, distance.found.relative, distance.tolerance)
    return None


def _at(
    phase: str, match: Match, quantity: str, relative: float = 0.0, tolerance: float = 0.0
) -> First:
    seen = match.seen.get(quantity)
    if seen is not None:
        relative, tolerance = seen.found.relative, seen.tolerance
    own = match.pair.own
    return First(phase, match.path, own.path if own else "", relative, tolerance, match)
