"""Do the moves behind the first step agree, where the gradients of all steps up to there do?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.align import align_weights, own_rate
from mpcore.tools.divergence.distance import Distance, apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.divergence.evidence import Evidence

    Array = npt.NDArray[np.float64]

__all__ = ["later_moves"]

_MORE = 8.0  # how much a move may be off, of what all gradients before it are off
_ROUNDINGS = 4.0  # of a weight, that are allowed for in its move
_LEAST = 1e-5


def later_moves(reference: Evidence, own: Evidence, unit: float) -> dict[str, Distance]:
    """Return the worst distance of the later moves, by path of the reference.

    A move is a function of the gradients and weights of its element so far, for whatever
    optimizer: at the half of the elements where those agree best it agrees too.

    Args:
        reference: one side.
        own: the other.
        unit: spacing at 1.0 of the format that holds the weights.
    """
    steps = [side.optimizer_steps for side in (reference, own)]
    count = min(len(s) for s in steps)
    if count < 2 or any(
        len(side.weights) <= s[count - 1] + 1
        for side, s in zip((reference, own), steps, strict=True)
    ):
        return {}
    numbers = list(zip(*steps, strict=False))
    aligned = [align_weights(reference.grads[a], own.grads[b]) for a, b in numbers]
    before = [(0, 0), *((a + 1, b + 1) for a, b in numbers)]
    held = [align_weights(reference.weights[a], own.weights[b]) for a, b in before]
    found = dict[str, Distance]()
    for path, name in _arrays(aligned[0]):
        weights_of = [_pair(layers, path, name) for layers in held]
        grads_of = [_pair(layers, path, name) for layers in aligned]
        known = [pair for pair in (*weights_of, *grads_of) if pair is not None]
        if len(known) < len(weights_of) + len(grads_of):
            continue
        if len({x.shape for pair in known for x in pair}) > 1:
            continue
        distance = _worst(known[: len(weights_of)], known[len(weights_of) :], unit)
        if distance is not None and (path not in found or _above(distance, found[path])):
            found[path] = distance
    return found


def _arrays(layers: Sequence[tuple[LayerWeights, LayerWeights]]) -> Iterator[tuple[str, str]]:
    for a, b in layers:
        yield from ((a.path, n) for n in a.arrays if n in b.arrays and own_rate(a, n))


def _pair(
    layers: Sequence[tuple[LayerWeights, LayerWeights]], path: str, name: str
) -> tuple[Array, Array] | None:
    for a, b in layers:
        if a.path == path and name in a.arrays and name in b.arrays:
            left, right = (np.asarray(x.arrays[name], np.float64).ravel() for x in (a, b))
            return left, right
    return None


def _worst(
    weights: Sequence[tuple[Array, Array]], grads: Sequence[tuple[Array, Array]], unit: float
) -> Distance | None:
    """Return the worst distance of one array's moves from the second on."""
    away = np.abs(weights[0][0] - weights[0][1]) / np.maximum(np.abs(weights[0][0]), 1e-6)
    live = np.ones(away.shape, dtype=bool)
    worst = None
    for step, (left, right) in enumerate(grads):
        least = 1e-6 * max(float(np.abs(left).max(initial=0.0)), 1e-30)
        away = away + np.abs(left - right) / np.maximum(np.abs(left), least)
        live &= left != 0.0
        if step == 0 or not live.any():
            continue
        limit = max(1e-6, float(np.median(away)))
        chosen = live & (away <= limit)
        moves = [(weights[step + 1][k] - weights[step][k])[chosen] for k in (0, 1)]
        norm = float(np.linalg.norm(moves[0]))
        if not norm:
            continue
        rounding = unit * float(np.linalg.norm(weights[0][0][chosen]))
        found, equal = apart(*moves)
        distance = Distance(found, _MORE * limit + _ROUNDINGS * rounding / norm + _LEAST, equal)
        worst = distance if worst is None or _above(distance, worst) else worst
    return worst


def _above(a: Distance, b: Distance) -> bool:
    return (a.beyond, a.found.relative) > (b.beyond, b.found.relative)
