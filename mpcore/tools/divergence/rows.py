"""One row a layer: how far output, gradients and update lie apart, each beside its tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.align import Pair, align, align_weights, layer_of
from mpcore.tools.divergence.biased import entry_of, follows, of_call
from mpcore.tools.divergence.distance import (
    Distance,
    apart,
    between,
    is_float,
    is_swapped,
    same_shape,
    spacing,
)
from mpcore.tools.divergence.fused import fused_side, inner_places, with_activation
from mpcore.tools.divergence.later import later_moves
from mpcore.tools.divergence.noise import QUANTITIES, Tolerances

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import LayerCall, TensorSummary

__all__ = ["Match", "Row", "Table", "relative", "tabulate"]

_BUFFERS = ("running_mean", "running_var")
_ROUNDED = 4.0  # roundings of a weight that are allowed for in its update
_SAME_LOSS = 1e-5  # relative: a loss of outputs that are the same to the last bit
_LEAST = 3e-2  # of the average gradient: what is smaller may be all rounding
_STATISTICS = 0.02  # relative: statistics of a batch whose values are rounded otherwise


@dataclass(frozen=True)
class Row:
    """One layer of the reference and what stands for it on the other side.

    Attributes:
        path: in the reference; that of the other side where the reference has none.
        own_path: in the other side; ``""`` where it has none.
        type: class names, one where both are the same.
        category: as in ``mpcore.policy.layer.CATEGORIES``.
        output: of the forward pass; None where there was nothing to compare.
        grad: gradient of what came in.
        param_grad: true gradients of its parameters.
        update: what the first step changed in its parameters and statistics.
        lone: ``"reference"`` or ``"own"``: the side that alone has it; ``""`` for both.
    """

    path: str
    own_path: str
    type: str
    category: str
    output: Distance | None = None
    grad: Distance | None = None
    param_grad: Distance | None = None
    update: Distance | None = None
    lone: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        names = ("output", "grad", "param_grad", "update")
        found: dict[str, Distance | None] = {name: getattr(self, name) for name in names}
        return {
            "path": self.path,
            "own_path": self.own_path,
            "type": self.type,
            "category": self.category,
            **{name: None if d is None else d.to_dict() for name, d in found.items()},
        }


@dataclass(frozen=True)
class Match:
    """One aligned call, with the distances of its quantities (see ``noise.QUANTITIES``)."""

    pair: Pair
    seen: dict[str, Distance | None]

    @property
    def path(self) -> str:
        """Path in the reference, or the own one where it has none."""
        return self.pair.path

    @property
    def container(self) -> bool:
        """Whether it holds other layers."""
        call = self.pair.reference or self.pair.own
        return call is not None and call.category == "container"

    @property
    def type(self) -> str:
        """Class of the layer in the reference, or the own one where it has none."""
        call = self.pair.reference or self.pair.own
        return call.type if call is not None else ""

    def allowing(self, tolerance: float) -> Match:
        """Return the match, its gradients allowed to lie so far apart."""
        seen = {
            name: d.allowing(tolerance) if d is not None and name.startswith("grad") else d
            for name, d in self.seen.items()
        }
        return replace(self, seen=seen)

    def parts(self, quantity: str) -> bool:
        """Return whether one quantity lies beyond its tolerance."""
        found = self.seen.get(quantity)
        return found is not None and found.beyond

    def same_bits(self, quantity: str) -> bool:
        """Return whether one quantity is the same to the last bit; True where there is none."""
        found = self.seen.get(quantity)
        return found is None or found.equal


@dataclass(frozen=True)
class Table:
    """Everything that was compared.

    Attributes:
        matches: calls, in forward order.
        weights: weights before the first step, by path of the reference.
        grads: true gradients of the first step, likewise.
        updates: of the first step, parameters and statistics apart, likewise.
        later: of the steps behind it, parameters, where all gradients up to there agree.
        biased: running variances that are off by a known difference alone, likewise.
        pairs: layers with weights, side by side, before the first step.
        loss: relative difference of the losses, beside its tolerance.
    """

    matches: list[Match]
    pairs: list[tuple[LayerWeights, LayerWeights]]
    weights: dict[str, Distance] = field(default_factory=dict)
    grads: dict[str, Distance] = field(default_factory=dict)
    updates: dict[str, Distance] = field(default_factory=dict)
    statistics: dict[str, Distance] = field(default_factory=dict)
    later: dict[str, Distance] = field(default_factory=dict)
    biased: dict[str, Distance] = field(default_factory=dict)
    loss: tuple[float, float] = (0.0, 0.0)

    def match(self, path: str) -> Match | None:
        """Return the first call of the layer at ``path`` of the reference."""
        return next((m for m in self.matches if m.path == path), None)

    def place(self, match: Match) -> int | None:
        """Return the place of a match among all."""
        return next((n for n, m in enumerate(self.matches) if m is match), None)

    def allowing(self, place: int, tolerance: float) -> Table:
        """Return the table, gradients up to the call at ``place`` allowed to lie so far apart."""
        matches = [m.allowing(tolerance) if n <= place else m for n, m in enumerate(self.matches)]
        paths = [m.path for m in matches[: place + 1] if not m.container]
        grads = {
            path: d.allowing(tolerance) if layer_of(path, paths) else d
            for path, d in self.grads.items()
        }
        return replace(self, matches=matches, grads=grads)

    def rows(self) -> list[Row]:
        """Return one row a layer, in forward order; of several calls the worst counts."""
        found: dict[str, Row] = {}
        paths = list(dict.fromkeys(m.path for m in self.matches))
        by_layer = [
            _by_layer(kind, paths) for kind in (self.grads, self._updates_and(self.statistics))
        ]
        for match in self.matches:
            old = found.get(match.path)
            row = _row(match)
            found[match.path] = row if old is None else _worse(old, row)
        return [
            Row(**{**vars(row), "param_grad": by_layer[0].get(p), "update": by_layer[1].get(p)})
            for p, row in found.items()
        ]

    def moves(self) -> dict[str, Distance]:
        """Return the worst move of the parameters of each layer, of all steps."""
        return self._updates_and(self.later)

    def _updates_and(self, others: dict[str, Distance]) -> dict[str, Distance]:
        found = dict(self.updates)
        for path, distance in others.items():
            found[path] = _larger([found.get(path), distance]) or distance
        return found


def tabulate(
    reference: Evidence, own: Evidence, tolerances: Tolerances, *, later: bool = True
) -> Table:
    """Compare everything that two sides have in common."""
    calls = reference.inspection.calls, own.inspection.calls
    # One framework calls the activation inside of a layer as a layer of its own.
    hidden = (
        ((), ()) if tolerances.same_backend else (inner_places(calls[0]), inner_places(calls[1]))
    )
    pairs = align(*calls, hidden)
    scales = (reference.inspection.scale, own.inspection.scale)
    matches = [Match(pair, _seen(pair, scales, tolerances)) for pair in pairs]
    matches = _fused(matches, calls, tolerances, scales)
    losses = reference.inspection.loss, own.inspection.loss
    exact = tolerances.same_backend and all(match.same_bits("outputs") for match in matches)
    loss = _SAME_LOSS if exact else tolerances.loss()
    table = Table(matches, [], loss=(relative(*losses), loss))
    if not (reference.weights and own.weights):
        return table
    layers = align_weights(reference.weights[0], own.weights[0])
    table.pairs.extend(layers)
    for a, b in layers:
        table.weights[a.path] = _arrays(a, b, 0.0)
    if not (reference.optimizer_steps and own.optimizer_steps):
        return table
    grads = align_weights(*(side.grads[side.optimizer_steps[0]] for side in (reference, own)))
    norms = [float(np.linalg.norm(array)) for a, _ in grads for array in a.arrays.values()]
    least = _LEAST * float(np.sqrt(np.mean(np.square(norms)))) if norms else 0.0
    for a, b in grads:
        table.grads[a.path] = _arrays(a, b, tolerances.gradient(b.path), least)
    if min(len(reference.weights), len(own.weights)) > 1:
        _compare_updates(table, reference, own, {a.path: (a, b) for a, b in grads})
        if later:
            unit = max(_stored(side) for side in (reference, own))
            table.later.update(later_moves(reference, own, unit))
    return table


def relative(reference: float, own: float) -> float:
    """Return how far a loss is from the reference's, relative to that; inf where one is NaN."""
    if reference == own or (reference != reference and own != own):
        return 0.0
    away = abs(own - reference) / max(abs(reference), 1e-12)
    return away if np.isfinite(away) else inf


def _seen(
    pair: Pair, scales: tuple[float, float], tolerances: Tolerances
) -> dict[str, Distance | None]:
    if pair.reference is None or pair.own is None:
        return {}
    found: dict[str, Distance | None] = {}
    for quantity in QUANTITIES:
        back = quantity.startswith("grad")
        factors = (1.0 / scales[0], 1.0 / scales[1]) if back else (1.0, 1.0)
        sides = [_floats(call, quantity) for call in (pair.reference, pair.own)]
        recurrent = pair.reference.category == "recurrent" and not tolerances.same_backend
        if recurrent or quantity in ("inputs", "grad_inputs"):
            # One pads inside of a layer and the other before it; one hands on every step of a
            # sequence and its states, the other the last step alone: the next output tells.
            sides = [[a, b] for a, b in zip(*sides, strict=False) if _same_shape(a, b)]
            sides = [list(side) for side in zip(*sides, strict=True)] or [[], []]
        seen = between(sides[0], sides[1], factors)
        found[quantity] = seen and Distance(seen[0], tolerances.of(pair, quantity), seen[1])
    came, went = found["inputs"], found["outputs"]
    leaf = pair.reference.category != "container"
    if leaf and tolerances.same_backend and went is not None and (came is None or came.equal):
        # The same numbers through the same kernels: only rounding inside is left.
        found["outputs"] = Distance(
            went.found, min(went.tolerance, tolerances.local(pair)), went.equal
        )
    return found


def _fused(
    matches: list[Match],
    calls: tuple[Sequence[LayerCall], Sequence[LayerCall]],
    tolerances: Tolerances,
    scales: tuple[float, float],
) -> list[Match]:
    """Return the matches, layers that run their activation inside beside that of the other side.

    Where the other side has no layer for it what they hand on is not compared.
    """
    found, spent = [], set[tuple[int, int]]()
    for match in matches:
        fused = fused_side(match.pair, calls)
        if fused is None:
            found.append(match)
            continue
        pair = with_activation(match.pair, calls)
        behind = _seen(pair, scales, tolerances) if pair is not None else {}
        if pair is not None:
            spent.add((1 - fused, pair.places[1 - fused]))
        told = {name: behind.get(name) for name in ("outputs", "grad_outputs")}
        found.append(Match(match.pair, {**match.seen, **told}))
    return [m for m in found if not any((s, p) in spent for s, p in _alone(m))]


def _alone(match: Match) -> Iterator[tuple[int, int]]:
    """Yield side and place of a call that the other side has no partner for."""
    calls = match.pair.reference, match.pair.own
    if None in calls:
        yield from ((side, match.pair.places[side]) for side, c in enumerate(calls) if c)


def _same_shape(a: TensorSummary | None, b: TensorSummary | None) -> bool:
    return a is not None and b is not None and (same_shape(a, b) or is_swapped(a, b))


def _floats(call: LayerCall, quantity: str) -> list[TensorSummary | None]:
    """Return the tensors of one quantity; integers only where there are no floats."""
    found = list(getattr(call, quantity))
    floats = [x for x in found if x is None or is_float(x)]
    return floats if any(x is not None for x in floats) else found


def _arrays(a: LayerWeights, b: LayerWeights, tolerance: float, least: float = 0.0) -> Distance:
    seen = [apart(array, b.arrays[n], least) for n, array in a.arrays.items() if n in b.arrays]
    if not seen or set(a.arrays) != set(b.arrays):
        lone = {
            n: x
            for w in (a, b)
            for n, x in w.arrays.items()
            if n not in a.arrays or n not in b.arrays
        }
        seen += [apart(np.zeros_like(x), x, max(least, 1e-30)) for x in lone.values()]
    if not seen:
        return Distance(apart(np.zeros(1), np.zeros(1))[0], tolerance, equal=True)
    largest = max((found for found, _ in seen), key=lambda d: d.relative)
    return Distance(largest, tolerance, all(equal for _, equal in seen))


def _compare_updates(
    table: Table,
    reference: Evidence,
    own: Evidence,
    grads: dict[str, tuple[LayerWeights, LayerWeights]],
) -> None:
    """Compare what the first step changed, where the gradients agree element by element."""
    if any(len(side.weights) <= side.optimizer_steps[0] + 1 for side in (reference, own)):
        return  # gradients without a step: an exact third side
    later = (side.weights[side.optimizer_steps[0] + 1] for side in (reference, own))
    after = {a.path: (a, b) for a, b in align_weights(*later)}
    unit = max(_stored(side) for side in (reference, own))
    for a, b in table.pairs:
        moved, statistics = [], []
        for name in sorted(set(a.arrays) & set(b.arrays)) if a.path in after else ():
            steps = [
                now.arrays[name].astype(np.float64) - before.arrays[name]
                for now, before in zip(after[a.path], (a, b), strict=True)
            ]
            if steps[0].shape != steps[1].shape:
                continue
            if name in _BUFFERS:
                match = table.match(layer_of(a.path, [m.path for m in table.matches]))
                came = match.seen.get("inputs") if match else None
                tolerance = _STATISTICS + (came.tolerance + came.found.relative if came else 0.0)
                found, equal = apart(steps[0], steps[1])
                distance = Distance(found, tolerance, equal)
                if distance.beyond and _is_biased(reference, own, steps, a.arrays, name, match):
                    table.biased[a.path] = distance
                    continue
                statistics.append(distance)
            elif a.path in grads and name in grads[a.path][0].arrays:
                pair = [side.arrays.get(name) for side in grads[a.path]]
                if pair[0] is not None and pair[1] is not None:
                    sizes = a.arrays[name], b.arrays[name]
                    moved.append(_update(steps, pair, sizes, unit))
        for several, into in ((moved, table.updates), (statistics, table.statistics)):
            largest = _larger(several)
            if largest is not None:
                into[a.path] = largest


def _is_biased(
    reference: Evidence,
    own: Evidence,
    steps: Sequence[npt.NDArray[Any]],
    before: dict[str, Any],
    name: str,
    match: Match | None,
) -> bool:
    """Return whether a running variance is off by what one of the frameworks leaves biased."""
    entry = entry_of(reference.backend, own.backend)
    if entry is None or not name.endswith(entry.arrays):
        return False
    biased = int(entry.backend == own.backend)
    return follows(
        steps,
        np.asarray(before[name], np.float64),
        of_call(match.pair.reference if match else None),
        biased,
    )


def _stored(side: Evidence) -> float:
    """Return the spacing at 1.0 of the format that holds the truth of the weights."""
    low = [e["param"] for e in side.plan.get("layers", ()) if e.get("param")]
    kept = any(word in side.policy for word in ("master=copy", "master=split"))
    return spacing("float32") if kept else spacing(*low)


def _update(
    steps: Sequence[npt.NDArray[Any]],
    grads: Sequence[Any],
    weights: Sequence[npt.NDArray[Any]],
    unit: float,
) -> Distance:
    """Return the distance of two updates at the half of the elements whose gradients agree best.

    An update of the first step is a function of one element's gradient and weight: where those
    agree it agrees too, whatever the gradients do elsewhere.
    """
    left, right = (np.asarray(g, np.float64).reshape(-1) for g in grads)
    size = np.maximum(np.abs(left), 1e-6 * max(float(np.abs(left).max(initial=0.0)), 1e-30))
    away = np.abs(left - right) / size
    away += np.abs(np.subtract(*weights).reshape(-1)) / np.maximum(
        np.abs(weights[0]).reshape(-1), 1e-6
    )
    limit = max(1e-6, float(np.median(away))) if away.size else 0.0
    chosen = (away <= limit) & (left != 0.0)
    a, b = (step.reshape(-1)[chosen] for step in steps)
    found, equal = apart(a, b)
    norm = float(np.linalg.norm(a))
    rounding = unit * float(np.linalg.norm(weights[0].reshape(-1)[chosen]))
    rest = _ROUNDED * rounding / norm if norm else (inf if rounding else 0.0)
    return Distance(found, 4.0 * limit + rest + 1e-5, equal)


def _larger(found: Sequence[Distance | None]) -> Distance | None:
    known = [d for d in found if d is not None]
    return max(known, key=lambda d: (d.beyond, d.found.relative), default=None)


def _by_layer(found: dict[str, Distance], paths: list[str]) -> dict[str, Distance]:
    """Return the largest distance by layer: arrays of parts belong to the layer they are in."""
    lists: dict[str, list[Distance]] = {}
    for path, distance in found.items():
        lists.setdefault(path if path in paths else layer_of(path, paths), []).append(distance)
    return {
        path: max(many, key=lambda d: (d.beyond, d.found.relative)) for path, many in lists.items()
    }


def _row(match: Match) -> Row:
    a, b = match.pair.reference, match.pair.own
    types = list(dict.fromkeys(call.type for call in (a, b) if call))
    category = (a or b).category if (a or b) else ""  # type: ignore[union-attr]  # one is there
    lone = "" if a and b else ("reference" if a else "own")
    return Row(
        match.path,
        b.path if b else "",
        " / ".join(types),
        category,
        match.seen.get("outputs"),
        match.seen.get("grad_inputs") or match.seen.get("grad_outputs"),
        lone=lone,
    )


def _worse(old: Row, new: Row) -> Row:
    pairs = {name: _larger([getattr(old, name), getattr(new, name)]) for name in ("output", "grad")}
    return Row(**{**vars(old), **pairs})
