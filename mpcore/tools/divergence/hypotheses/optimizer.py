"""Constants of the optimizers that differ, told from what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.distance import spacing
from mpcore.tools.divergence.hypotheses.fit import Fit, Steps, fit, left, steps_of
from mpcore.tools.divergence.hypotheses.update import from_dampening, from_moves
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.root_cause import Case

__all__ = ["from_statistics", "from_steps"]

_KNOWN = 0.05  # relative: moves that a formula leaves more of are not of its kind
_TIMES = 3.0
_FORMULA = 1e-4  # relative: arithmetic of one backend in float32
_FORMULAS = 3e-3  # Keras and MindSpore add eps before the bias correction, torch after it
_OFF = 0.02  # relative: constants nearer than this are the same one


def from_steps(case: Case) -> Iterator[RootCause]:
    """Yield constants of the optimizer that differ, for all layers or for those that part."""
    if any(d.beyond for d in case.table.updates.values()):
        found = from_moves(case)
        if found:
            yield from found
            return
    if any(d.beyond for d in case.table.later.values()):
        dampened = from_dampening(case)
        if dampened:
            yield from dampened
            return
    parted = [path for path, d in case.table.updates.items() if d.beyond]
    if parted and len(parted) < 0.5 * len(case.table.updates):
        for path in parted:
            yield from _compared(case, path)
        return
    yield from _compared(case, "")


def _compared(case: Case, path: str) -> Iterator[RootCause]:
    own_path = next((b.path for a, b in case.table.pairs if a.path == path), path)
    steps = steps_of(case.reference, path), steps_of(case.own, own_path)
    if steps[0] is None or steps[1] is None:
        return
    where = path or "(optimizer)"
    mine = own_path or "(optimizer)"
    theirs = fit(steps[0])
    if theirs.left > _KNOWN:
        return  # not one of ours: nothing to compare with
    floor = _FORMULA if case.tolerances.same_backend else _FORMULAS
    floor += max(_rounding(case.reference, steps[0]), _rounding(case.own, steps[1]))
    with_theirs = left(steps[1], theirs.name, theirs.constants)
    if with_theirs <= _TIMES * theirs.left + floor:
        return
    fits = theirs, fit(steps[1])
    strange = case.later and fits[1].left > _KNOWN
    if not strange and with_theirs <= _TIMES * fits[1].left + floor:
        return
    found = from_moves(case) if strange and not path else []
    if found:
        yield from found
        return
    if fits[1].left > _KNOWN or fits[0].name != fits[1].name:
        kind = fits[1].name if fits[1].left <= _KNOWN else "neither SGD nor Adam"
        sentence = (
            f"the reference moves as {_words(fits[0])}; this side as {kind}: "
            f"the reference's constants leave {with_theirs:.2g} of its moves unexplained"
        )
        fix = f"use {fits[0].name} with {_words(fits[0])}"
    else:
        differing = _differing(steps[1], fits, floor)
        if not differing:
            return
        sentence = "from gradients and moves: " + ", ".join(
            f"{name} is {fits[0].constants[name]:.4g} there and {fits[1].constants[name]:.4g} here"
            for name in differing
        )
        fix = "set " + ", ".join(f"{name} to {fits[0].constants[name]:.3g}" for name in differing)
    texts = (case.reference.optimizer, case.own.optimizer)
    said = [f"they were written as {texts[0]} and {texts[1]}"] if texts[0] != texts[1] else []
    yield RootCause("optimizer constants", where, mine, "update", (sentence, *said), fix, "sure")


def _differing(steps: Steps, fits: tuple[Fit, Fit], floor: float) -> list[str]:
    """Return the constants whose exchange alone spoils the fit; all that differ if none does."""
    theirs, mine = fits[0].constants, fits[1].constants
    apart = [name for name in mine if _away(name, mine[name], theirs[name]) > _OFF]
    spoils = []
    for name in apart:
        changed = left(steps, fits[1].name, {**mine, name: theirs[name]})
        if changed > 2 * fits[1].left + 0.5 * floor:
            spoils.append(name)
    return spoils or apart


def _away(name: str, a: float, b: float) -> float:
    """Return how far two constants are apart, relative; of decays, what they let go counts."""
    if name in ("momentum", "beta1", "beta2"):
        a, b = 1.0 - a, 1.0 - b
    largest = max(abs(a), abs(b))
    return abs(a - b) / largest if largest else 0.0


def _rounding(side: Evidence, steps: Steps) -> float:
    """Return how much of the moves rounding of the weights makes up."""
    low = [e["param"] for e in side.plan.get("layers", ()) if e.get("param")]
    kept = "master=copy" in side.policy or "master=split" in side.policy
    unit = spacing("float32") if kept else spacing(*low)
    size = float(np.linalg.norm(steps.moves)) or 1.0
    return unit * float(np.linalg.norm(steps.weights[1:])) / size


def from_statistics(case: Case) -> Iterator[RootCause]:
    """Yield running statistics that move another way: momentum."""
    for path, distance in case.table.statistics.items():
        if not distance.beyond:
            continue
        own = next((b.path for a, b in case.table.pairs if a.path == path), "")
        match = case.table.match(path)
        shares = [_share(side, p) for side, p in ((case.reference, path), (case.own, own))]
        told = [
            call.attributes.get("momentum") if call else None
            for call in ((match.pair.reference, match.pair.own) if match else (None, None))
        ]
        sentences = [f"the running statistics moved otherwise, {distance.found.relative:.2g} apart"]
        if shares[0] is not None and shares[1] is not None:
            sentences.append(
                f"from three steps: {shares[0]:.3g} of the new batch is taken in there, "
                f"{shares[1]:.3g} here"
            )
        sure = told[0] != told[1] and None not in told
        fix = "set momentum to that of the reference (Keras counts what is kept: 1 - momentum)"
        if shares[0] is not None:
            fix = (
                f"let it take in {shares[0]:.3g} of each batch: momentum={shares[0]:.3g} in torch, "
                f"{1 - shares[0]:.3g} in Keras and MindSpore"
            )
        yield RootCause(
            "momentum",
            path,
            own,
            "update",
            tuple(sentences),
            fix,
            "sure" if sure or None not in shares else "likely",
        )


def _share(side: Evidence, path: str) -> float | None:
    """Return the share of the new batch in the running mean, from the moves of two steps.

    The batch's mean hardly moves between the steps, so that each move is (1 - share) times the
    one before it.
    """
    found = []
    for weights in side.weights:
        layer = next((w for w in weights if w.path == path), None)
        if layer is None or "running_mean" not in layer.arrays:
            return None
        found.append(layer.arrays["running_mean"].astype(np.float64))
    moves = np.diff(np.stack(found), axis=0) if len(found) > 2 else np.zeros((0, 1))
    if len(moves) < 2 or not np.linalg.norm(moves[0]):
        return None
    kept = float((moves[0] * moves[1]).sum() / np.square(moves[0]).sum())
    return 1.0 - kept if 0.0 <= kept <= 1.0 else None


def _words(found: Fit) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in found.constants.items())
