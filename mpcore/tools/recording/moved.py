"""Weights that a script moves outside of the optimizer's steps: set again, clamped, averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.align import align_weights
from mpcore.tools.divergence.distance import apart
from mpcore.tools.divergence.find import Verdict
from mpcore.tools.divergence.first import First
from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.recording.sketch import sketched_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.divergence.evidence import Evidence

__all__ = ["moved_outside"]

_SAME = 1e-6  # relative: weights that nobody moved, perhaps in another layout
_GROWN = 30.0  # times the distance of the two sides before: what is carried, not moved
_LEAST = 1e-3  # root mean square below which an array is all rounding


def moved_outside(
    before: tuple[Evidence, Evidence], now: tuple[Evidence, Evidence]
) -> Verdict | None:
    """Return what two runs' weights do between the last point known and this step's begin.

    Args:
        before: the first weights of both runs, or the step right before; others tell nothing.
        now: a step, of both.

    Returns:
        None where the two sides are no farther apart than they were.
    """
    number = int(now[0].steps[0]["number"])
    behind = [int(side.steps[0]["number"]) + 1 if side.steps else 0 for side in before]
    if behind != [number, number]:
        return None
    then = [side.weights[1 if side.steps else 0] for side in before]
    here = [side.weights[0] for side in now]
    away, was = _by_layer(*here), _by_layer(*_alike(then, here))
    parted = [path for path, far in away.items() if far > _SAME + _GROWN * was.get(path, 0.0)]
    if not parted:
        return None
    own = {a.path: b.path for a, b in align_weights(*here)}
    paths = {path: (path, own[path]) for path in parted}
    moved = []
    for old, new in zip(then, here, strict=True):
        far = _by_layer(_alike([old], [new])[0], new)
        moved.append({path: size for path, size in far.items() if size > _SAME})
    parted = [p for p in parted if any(paths[p][n] in moved[n] for n in (0, 1))]
    return _told(parted, paths, moved, away, number) if parted else None


def _told(
    parted: list[str],
    paths: dict[str, tuple[str, str]],
    moved: list[dict[str, float]],
    away: dict[str, float],
    number: int,
) -> Verdict:
    layer = parted[0]
    own = paths[layer][1]
    sides = [n for n in (0, 1) if paths[layer][n] in moved[n]]
    who = "both, each otherwise" if len(sides) == 2 else ("the reference", "this side")[sides[0]]
    size = max(moved[n][paths[layer][n]] for n in sides)
    when = f"after step {number - 1} and before step {number}, by no optimizer"
    if not number:
        when = "after mp.record and before the first step"
    more = f", and {len(parted) - 1} more" if len(parted) > 1 else ""
    sentence = f"{layer}{more}: its weights moved by {size:.1e} {when}, in {who}"
    kind, word = "other setting", "other weights"
    fix = f"look for what sets the weights of {own} between steps: a clamp, a norm, an average"
    if not number:
        kind, word = "initialisation", "other first weights"
        fix = "record behind all that sets weights, or set them alike on both sides"
    cause = RootCause(kind, layer, own, "forward", (sentence,), fix, "sure")
    first = First("forward", layer, own, away[layer], _SAME)
    return Verdict(f"different: {word}: {layer}, {when}", (), first, (cause,), "")


def _alike(
    then: Sequence[Sequence[LayerWeights]], now: Sequence[Sequence[LayerWeights]]
) -> list[Sequence[LayerWeights]]:
    """Return earlier weights with as many values of each array as the later ones keep."""
    found: list[Sequence[LayerWeights]] = []
    for old, new in zip(then, now, strict=True):
        sizes = {(w.path, n): a.size for w in new for n, a in w.arrays.items()}
        whole = {
            w.path
            for w in old
            if all(sizes.get((w.path, n), a.size) == a.size for n, a in w.arrays.items())
        }
        found.append(sketched_weights(old, frozenset(whole)))
    return found


def _by_layer(reference: Sequence[LayerWeights], own: Sequence[LayerWeights]) -> dict[str, float]:
    """Return how far each layer of the reference is from the other side's: its worst array."""
    found: dict[str, float] = {}
    for left, right in align_weights(reference, own):
        for name, array in left.arrays.items():
            other = right.arrays.get(name)
            if name.startswith("running") or other is None or other.shape != array.shape:
                continue  # a step in training does not read running statistics
            least = _LEAST * float(np.sqrt(array.size))
            far = float(apart(array, other, least)[0].relative)
            found[left.path] = max(found.get(left.path, 0.0), far)
    return found
