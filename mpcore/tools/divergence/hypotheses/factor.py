"""Gradients of a layer that are another's times one factor, where noise hides the distance."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from mpcore.tools.divergence.align import align_weights
from mpcore.tools.divergence.distance import MARGIN
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.root_cause import Case

__all__ = ["from_factor"]

_LEAST = 3e-2  # of the average gradient: what is smaller may be all rounding
_PARALLEL = 0.9  # cosine: noise turns a gradient, and leaves its length nearly as it is
_FLOOR = 0.2  # of the logarithm of a factor: what 16 bits may do to a length
_SHARE = 0.4  # of what noise may turn, that it may change of a length
_EXACT = 0.1  # logarithm of a factor that leaves next to nothing
_SOUND = 0.05  # logarithm of what is no factor
_TIMES = 3.0  # as much as what it leaves: noise points anywhere, and is seldom all along
_VALUES, _ENOUGH = 4, 16  # of an array, and of the largest: fewer are parallel by chance


def from_factor(case: Case, layer: str | None = None) -> Iterator[RootCause]:
    """Yield the last layer whose gradients are all the reference's times one factor.

    Args:
        case: the comparison.
        layer: only this one; None for all, from the last call back.
    """
    sides = case.reference, case.own
    if not all(side.optimizer_steps for side in sides):
        return
    grads = {
        a.path: (a, b) for a, b in align_weights(*(s.grads[s.optimizer_steps[0]] for s in sides))
    }
    norms = [float(np.linalg.norm(x)) for a, _ in grads.values() for x in a.arrays.values()]
    least = _LEAST * float(np.sqrt(np.mean(np.square(norms)))) if norms else inf
    paths = list(dict.fromkeys(m.path for m in reversed(case.table.matches)))
    sound = False  # whether the layer behind, nearer to the loss, has the reference's gradients
    for path in (p for p in paths if p in grads):
        a, b = grads[path]
        names = [n for n, x in a.arrays.items() if np.linalg.norm(x) > least and n in b.arrays]
        found = [_factor(a.arrays[n], b.arrays[n]) for n in names]
        if not found or None in found:
            sound = False
            continue
        known = [each for each in found if each is not None]
        band = max(
            _FLOOR,
            _SHARE * case.tolerances.gradient(b.path),
            MARGIN * max(_lengths(s, w.path, names) for s, w in zip(sides, (a, b), strict=True)),
        )
        sizes = [abs(log(f)) for f, _ in known]
        enough = max(a.arrays[n].size for n in names) >= _ENOUGH
        clear = all(abs(log(f)) > max(_EXACT, _TIMES * left) for f, left in known)
        exact = sound and enough and clear
        if (exact or min(sizes) > band) and max(sizes) < 1.3 * min(sizes) and layer in (None, path):
            yield _cause(path, b.path, known)
            return
        sound = max(sizes) < _SOUND


def _cause(path: str, own: str, known: list[tuple[float, float]]) -> RootCause:
    factor = float(np.median([f for f, _ in known]))
    left = max(rest for _, rest in known)
    sentence = (
        f"all gradients of {path} are {factor:.3g} times the reference's, which leaves {left:.1e} "
        "of them"
    )
    fix = f"look for a factor of {factor:.3g} in the backward pass, behind {own}"
    return RootCause("other setting", path, own, "backward", (sentence,), fix, "likely")


def _factor(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> tuple[float, float] | None:
    """Return how many times ``a`` ``b`` is, and what that leaves of it; None: it turns elsewhere.

    Noise turns a gradient: what is left is then no smaller than what the factor takes away.
    """
    if a.shape != b.shape or a.size < _VALUES:
        return None
    left, right = (np.asarray(x, np.float64).ravel() for x in (a, b))
    norms = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    if not norms[1] or not float(left @ right) > _PARALLEL * norms[0] * norms[1]:
        return None
    factor = norms[1] / norms[0]
    return factor, float(np.linalg.norm(right - factor * left)) / norms[1]


def _lengths(side: Evidence, path: str, arrays: list[str]) -> float:
    """Return how far moved weights change the length of a layer's gradients, as a logarithm."""
    grads, found = side.inspection.grads, 0.0
    own = [n for n in grads if n.startswith(path) and not n[len(path) :][:1].isalnum()]
    names = [n for n in own if n.rpartition(".")[2] in arrays] or own
    for other in side.moved:
        for name in names:
            pair = grads[name], other.grads.get(name)
            if pair[0] is None or pair[1] is None or not pair[0].norm or not pair[1].norm:
                continue
            scales = side.inspection.scale / other.scale
            found = max(found, abs(log(pair[1].norm * scales / pair[0].norm)))
    return found
