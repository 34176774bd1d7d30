"""What made other moves of like gradients: schedule, clipping, groups, decay, frozen and tied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.align import own_rate
from mpcore.tools.divergence.hypotheses.fit import FORMULAS, Steps, fit, left
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.hypotheses.fit import Fit
    from mpcore.tools.divergence.root_cause import Case

    Array = npt.NDArray[np.float64]
    Key = tuple[str, str]

__all__ = ["from_dampening", "from_moves", "from_still"]

OPTIMIZER = "(optimizer)"
_EVEN, _TOP = 512, 64  # elements of an array that are looked at: evenly, and the largest
_PLAIN = 0.02  # relative: moves that an optimizer leaves more of are not its own
_SAME = 0.02  # relative: factors nearer than this are one


@dataclass(frozen=True)
class _Side:
    """One side's moves by array, the norm of all gradients at each step, and its framework."""

    arrays: Mapping[Key, Steps]
    norms: Array
    backend: str = ""

    def all(self) -> Steps:
        """Return every array's elements side by side."""
        steps = list(self.arrays.values())
        return Steps(
            np.concatenate([s.weights for s in steps], 1),
            np.concatenate([s.grads for s in steps], 1),
        )


def from_moves(case: Case) -> list[RootCause]:
    """Return why the moves differ though the gradients agree; empty if nothing explains them.

    The side whose moves are those of a plain optimizer tells the constants; what the other one
    made of its own gradients is explained from there.
    """
    reference, own = _side(case.reference), _side(case.own)
    if reference is None or own is None:
        return []
    sides = reference, own
    still = _never_move(case, reference, own)
    if still:
        return still
    fits = [fit(side.all()) for side in sides]
    order = (0, 1) if fits[0].left <= fits[1].left else (1, 0)
    other = sides[order[1]]
    if fits[order[0]].left > _PLAIN:
        return list(_both_scheduled(sides[0], sides[1], fits))
    constants, name = fits[order[0]].constants, fits[order[0]].name
    if left(other.all(), name, constants) <= _floor(other):
        return []
    who = "this side" if order[1] else "the reference"
    for rule in (_kept, _clipped, _dampened, _scheduled, _clamped, _grouped):
        found = rule(other, name, constants, who)
        if found is not None:
            kind, sentence, fix, layer = found
            names = {b.path: a.path for a, b in case.table.pairs} if order[1] else {}
            where = names.get(layer, layer)
            return [RootCause(kind, where, layer, "update", (sentence,), fix, "sure")]
    return []


def from_dampening(case: Case) -> list[RootCause]:
    """Return that the momentum of one side is dampened; empty if it is not."""
    sides = _side(case.reference), _side(case.own)
    if sides[0] is None or sides[1] is None:
        return []
    for number, who in ((1, "this side"), (0, "the reference")):
        plain, other = sides[1 - number], sides[number]
        if plain is None or other is None or other.backend != "torch":
            continue
        theirs = fit(plain.all())
        found = _dampened(other, theirs.name, theirs.constants, who)
        if theirs.left <= _PLAIN and found is not None:
            kind, sentence, fix, layer = found
            return [RootCause(kind, layer, layer, "update", (sentence,), fix, "sure")]
    return []


def from_still(case: Case) -> list[RootCause]:
    """Return that several arrays of one side never move; empty if they all do."""
    sides = _side(case.reference), _side(case.own)
    if sides[0] is None or sides[1] is None:
        return []
    return _never_move(case, sides[0], sides[1])


def _side(evidence: Evidence) -> _Side | None:
    real = [n for n in evidence.optimizer_steps if n + 1 < len(evidence.weights)]
    if not real:
        return None
    weights = [evidence.weights[0], *(evidence.weights[n + 1] for n in real)]
    tables = [{w.path: w.arrays for w in layers} for layers in weights]
    grads = [{w.path: w.arrays for w in evidence.grads[n]} for n in real]
    known = {w.path: w for w in evidence.grads[real[0]]}
    arrays: dict[Key, Steps] = {}
    for path, held in grads[0].items():
        for name in held:
            if not own_rate(known[path], name):
                continue
            try:
                own = [np.asarray(t[path][name], np.float64).ravel() for t in tables]
                came = [np.asarray(g[path][name], np.float64).ravel() for g in grads]
            except KeyError:
                continue  # a layer under another name: compared by nobody
            chosen = _chosen(came[0])
            arrays[path, name] = Steps(
                np.stack([w[chosen] for w in own]), np.stack([g[chosen] for g in came])
            )
    norms = np.array(
        [
            np.sqrt(
                sum(
                    float(np.square(a, dtype=np.float64).sum())
                    for h in g.values()
                    for a in h.values()
                )
            )
            for g in grads
        ]
    )
    return _Side(arrays, norms, evidence.backend) if arrays else None


def _chosen(grad: Array) -> npt.NDArray[np.int64]:
    even = np.arange(0, grad.size, max(1, grad.size // _EVEN))
    top = np.argsort(-np.abs(grad))[:_TOP]
    return np.union1d(even, top)


def _floor(side: _Side) -> float:
    """Return how much of the moves float32 rounding of the weights makes up, and some more."""
    steps = side.all()
    size = float(np.linalg.norm(steps.moves)) or 1.0
    return 1e-3 + 4 * 2.0**-23 * float(np.linalg.norm(steps.weights[1:])) / size


# --- arrays that stay


def _never_move(case: Case, reference: _Side, own: _Side) -> list[RootCause]:
    """Return that several arrays of one side never move, where the other's do."""
    names = {a.path: b.path for a, b in case.table.pairs}
    for mine, theirs, who, back in (
        (own, reference, "this side", names),
        (reference, own, "the reference", {b: a for a, b in names.items()}),
    ):
        pairs = [(key, (back.get(key[0], key[0]), key[1])) for key in theirs.arrays]
        still = [
            key
            for key, partner in pairs
            if partner in mine.arrays
            and not mine.arrays[partner].moves.any()
            and theirs.arrays[key].moves.any()
        ]
        if len(still) < 2 or _whole_layers(still, mine, back):
            continue
        sentence = f"{_named(still, list(theirs.arrays))} never move in {who}"
        fix = "give them to the optimizer, and let them be trained, on both sides"
        return [
            RootCause("other setting", OPTIMIZER, OPTIMIZER, "update", (sentence,), fix, "sure")
        ]
    return []


def _whole_layers(still: Sequence[Key], side: _Side, back: Mapping[str, str]) -> bool:
    """Return whether whole layers get no gradient: it is stopped on its way, not left out."""
    paths = {back.get(path, path) for path, _ in still}
    arrays = [steps for (path, _), steps in side.arrays.items() if path in paths]
    return not any(steps.moves.any() or steps.grads.any() for steps in arrays)


def _named(chosen: Sequence[Key], known: Sequence[Key]) -> str:
    """Return arrays in words: all of a name, or the first of them."""
    names = {name for _, name in chosen}
    if set(chosen) == {key for key in known if key[1] in names}:
        return f"all arrays named {' and '.join(sorted(names))}"
    shown = ", ".join(f"{path}.{name}" for path, name in chosen[:3])
    return f"{shown} and {len(chosen) - 3} more" if len(chosen) > 3 else shown


# --- gradients of earlier steps


def _kept(
    side: _Side, name: str, constants: Mapping[str, float], who: str
) -> tuple[str, str, str, str] | None:
    """Return that each step moves by the sum of all gradients so far."""
    steps = side.all()
    summed = Steps(steps.weights, np.cumsum(steps.grads, axis=0))
    if len(steps.grads) < 2 or left(summed, name, constants) > 2 * _floor(side):
        return None
    sentence = f"each step of {who} moves by the sum of all gradients so far"
    fix = "clear the gradients between the steps (zero_grad), on both sides"
    return "other setting", sentence, fix, OPTIMIZER


# --- factors by step


def _clipped(
    side: _Side, name: str, constants: Mapping[str, float], who: str
) -> tuple[str, str, str, str] | None:
    """Return that the gradients were multiplied at each step: clipped to a norm."""
    if name != "sgd":
        return None  # Adam divides a common factor out again
    steps = side.all()
    factors, made = _gradient_factors(steps, constants)
    if _relative(made, steps.moves) > _floor(side) or not (factors < 1 + _SAME).all():
        return None
    low = factors < 1 - _SAME
    reached = factors * side.norms
    if not low.any() or np.ptp(reached[low]) > _SAME * float(reached[low].max()):
        return None
    norm = float(reached[low].mean())
    times = ", ".join(f"{f:.3g}" for f in factors)
    sentence = (
        f"{who} multiplies the gradients by {times} before it moves: their norm "
        f"({', '.join(f'{n:.3g}' for n in side.norms)}) is clipped to {norm:.3g}"
    )
    return (
        "clipping",
        sentence,
        _clip_fix(who, f"the norm of all gradients to {norm:.3g}"),
        OPTIMIZER,
    )


def _clip_fix(who: str, what: str) -> str:
    if who == "this side":
        return f"leave out the clipping of {what}, or clip in the reference too"
    return f"clip {what} on this side too"


def _gradient_factors(steps: Steps, constants: Mapping[str, float]) -> tuple[Array, Array]:
    """Return a factor on the gradient of each step, and the moves that SGD makes with it."""
    rate, momentum, decay = (constants[n] for n in ("learning rate", "momentum", "weight decay"))
    nesterov = constants["nesterov"]
    buffer, factors, made = np.zeros_like(steps.grads[0]), [], []
    for grad, weight, move in zip(steps.grads, steps.weights, steps.moves, strict=False):
        lead = -rate * (1 + momentum if nesterov else 1.0)
        rest = -rate * (momentum * momentum if nesterov else momentum) * buffer
        rest = rest + lead * decay * weight
        size = float(np.square(lead * grad).sum())
        factor = float(((move - rest) * lead * grad).sum()) / size if size else 1.0
        factors.append(factor)
        buffer = momentum * buffer + factor * grad + decay * weight
        made.append(rest + lead * factor * grad)
    return np.array(factors), np.stack(made)


def _rates(steps: Steps, name: str, constants: Mapping[str, float]) -> tuple[Array, Array]:
    """Return a factor on the move of each step, and those moves."""
    plain = FORMULAS[name](steps, constants)
    sizes = np.maximum(np.square(plain).sum(1), 1e-300)
    factors = (plain * steps.moves).sum(1) / sizes
    return factors, plain * factors[:, None]


def _dampened(
    side: _Side, name: str, constants: Mapping[str, float], who: str
) -> tuple[str, str, str, str] | None:
    """Return that the momentum takes in less of each gradient but the first: torch's dampening.

    Keras' schedules change what the momentum takes in, too: there it is one of those.
    """
    if name != "sgd" or side.backend != "torch" or not constants["momentum"]:
        return None
    steps = side.all()
    factors, made = _gradient_factors(steps, constants)
    if len(factors) < 3 or _relative(made, steps.moves) > _floor(side):
        return None
    amount = 1.0 - float(factors[1:].mean())
    if abs(factors[0] - 1) > _SAME or np.ptp(factors[1:]) > _SAME or not _SAME < amount < 1:
        return None
    sentence = (
        f"from the second step on the momentum of {who} takes in {1 - amount:.3g} of each gradient"
    )
    fix = f"give both the same dampening: 0 or {amount:.3g}"
    return "optimizer constants", sentence, fix, OPTIMIZER


def _scheduled(
    side: _Side, name: str, constants: Mapping[str, float], who: str
) -> tuple[str, str, str, str] | None:
    """Return that the rate changes from step to step."""
    steps = side.all()
    factors, made = _rates(steps, name, constants)
    if _relative(made, steps.moves) > _floor(side) and name == "sgd":
        # Keras takes the rate of each step into the momentum, torch multiplies behind it.
        factors, made = _gradient_factors(steps, constants)
    if (
        _relative(made, steps.moves) > _floor(side)
        or np.ptp(factors) < _SAME * np.abs(factors).max()
    ):
        return None
    told = ", ".join(f"{constants['learning rate'] * f:.3g}" for f in factors)
    sentence = (
        f"the rate of {who} is {told} at the first {len(factors)} steps; that of the other "
        f"{constants['learning rate']:.3g} at each"
    )
    fix = "give both the same schedule, counted from the same step"
    return "schedule", sentence, fix, OPTIMIZER


def _both_scheduled(reference: _Side, own: _Side, fits: Sequence[Fit]) -> Iterator[RootCause]:
    """Yield that both sides have a schedule, and not the same one."""
    found = []
    for side in (reference, own):
        best = min(
            (_free_rates(side, name, constants) for name, constants in _guesses(fits)),
            key=lambda f: f[0],
        )
        if best[0] > _floor(side) + 1e-3:
            return
        found.append(best[1])
    if np.abs(found[0] - found[1]).max() <= _SAME * np.abs(found[0]).max():
        return
    told = [", ".join(f"{rate:.3g}" for rate in rates) for rates in found]
    sentence = f"the rates of the first steps are {told[0]} in the reference and {told[1]} here"
    fix = "give both the same schedule, counted from the same step"
    yield RootCause("schedule", OPTIMIZER, OPTIMIZER, "update", (sentence,), fix, "sure")


def _guesses(fits: Sequence[Fit]) -> Iterator[tuple[str, dict[str, float]]]:
    for momentum in (0.0, 0.5, 0.8, 0.9, 0.95, 0.99):
        more = {"momentum": momentum, "nesterov": 0.0, "weight decay": 0.0}
        yield "sgd", {"learning rate": 1.0, **more}
    for found in fits:
        if found.name == "adam":
            yield "adam", {**found.constants, "learning rate": 1.0}
    standard = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight decay": 0.0, "decoupled": 1.0}
    yield "adam", {**standard, "learning rate": 1.0}


def _free_rates(side: _Side, name: str, constants: Mapping[str, float]) -> tuple[float, Array]:
    steps = side.all()
    factors, made = _rates(steps, name, constants)
    return _relative(made, steps.moves), factors


# --- factors by element and by array


def _clamped(
    side: _Side, name: str, constants: Mapping[str, float], who: str
) -> tuple[str, str, str, str] | None:
    """Return that the gradients were clipped value by value: at one limit, or at each step's."""
    if name != "sgd":
        return None
    steps = side.all()
    limits, grads = [], []
    rate, momentum, decay = (constants[n] for n in ("learning rate", "momentum", "weight decay"))
    if constants["nesterov"]:
        return None
    buffer = np.zeros_like(steps.grads[0])
    for grad, weight, move in zip(steps.grads, steps.weights, steps.moves, strict=False):
        used = -move / rate - momentum * buffer - decay * weight
        limits.append(float(np.abs(used).max()))
        grads.append(np.clip(grad, -limits[-1], limits[-1]))
        buffer = momentum * buffer + grads[-1] + decay * weight
    made = FORMULAS[name](Steps(steps.weights, np.stack(grads)), constants)
    cut = [
        bool((np.abs(g) > (1 + _SAME) * limit).any())
        for g, limit in zip(steps.grads, limits, strict=True)
    ]
    if not any(cut) or _relative(made, steps.moves) > 2 * _floor(side):
        return None
    limit = min(limits)
    sentence = f"{who} clips the gradients value by value, at {limit:.3g}"
    return (
        "clipping",
        sentence,
        _clip_fix(who, f"every value of the gradients to {limit:.3g}"),
        OPTIMIZER,
    )


def _grouped(
    side: _Side, name: str, constants: Mapping[str, float], who: str
) -> tuple[str, str, str, str] | None:
    """Return that some arrays have another rate, or another decay."""
    floor = 4 * _floor(side)
    rates, decays = dict[Any, float](), dict[Any, float]()
    for key, steps in side.arrays.items():
        size = float(np.linalg.norm(steps.moves))
        own = floor + 8 * 2.0**-23 * float(np.linalg.norm(steps.weights[1:])) / (size or 1.0)
        if own > 0.2 or left(steps, name, constants) <= own:
            continue  # as the others, or too little to tell
        plain = FORMULAS[name](steps, constants)
        factor = float((plain * steps.moves).sum()) / max(float(np.square(plain).sum()), 1e-300)
        if _relative(factor * plain, steps.moves) <= own and abs(factor - 1) > _SAME:
            rates[key] = factor
        decay = _decay(steps, name, constants)
        if decay is not None and left(steps, name, {**constants, "weight decay": decay}) <= own:
            decays[key] = decay
        if key not in rates and key not in decays:
            return None
    # A tiny gradient, as of a bias before a norm, hides which of the two it is: the rest tells.
    told = sorted(((rates, "rate"), (decays, "weight decay")), key=lambda one: -len(one[0]))
    for found, what in told:
        values = list(found.values())
        if not found or np.ptp(values) > 2 * _SAME * max(np.abs(values).max(), 1e-3):
            continue
        which, value = _named(list(found), list(side.arrays)), float(np.mean(values))
        if what == "rate":
            base = constants["learning rate"]
            sentence = (
                f"the rate of {which} in {who} is {value * base:.3g}, of the others {base:.3g}"
            )
            fix = f"give {which} the same rate on both sides: {base:.3g} or {value * base:.3g}"
        else:
            base = constants["weight decay"]
            sentence = (
                f"the weight decay of {which} in {who} is {value:.3g}, that of the rest {base:.3g}"
            )
            fix = f"give {which} the same weight decay on both sides: {base:.3g} or {value:.3g}"
        layers = {path for path, _ in found}
        return "optimizer constants", sentence, fix, layers.pop() if len(layers) == 1 else OPTIMIZER
    return None


def _decay(steps: Steps, name: str, constants: Mapping[str, float]) -> float | None:
    """Return the weight decay that the first move shows; None where it shows none."""
    plain = FORMULAS[name](steps, {**constants, "weight decay": 0.0})[0]
    lead = -constants["learning rate"] * (
        1 + constants["momentum"] if constants.get("nesterov") else 1
    )
    term = lead * steps.weights[0]
    size = float(np.square(term).sum())
    if not size or (name == "adam" and not constants["decoupled"]):
        return None
    found = float(((steps.moves[0] - plain) * term).sum()) / size
    return 0.0 if abs(found) < 1e-7 else found


def _relative(made: Array, moves: Array) -> float:
    size = float(np.linalg.norm(moves))
    return float(np.linalg.norm(made - moves)) / (size or 1.0)
