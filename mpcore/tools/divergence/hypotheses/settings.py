"""Settings and weights of a layer that differ."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.divergence.settings import FORWARD, differing, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.divergence.rows import Match

__all__ = ["from_settings", "from_weights"]

_KINDS = {
    "eps": "eps",
    "momentum": "momentum",
    "padding": "padding",
    "padding_mode": "padding",
    "count_include_pad": "padding",
    "ceil_mode": "padding",
    "approximate": "activation variant",
    "slope": "activation variant",
    "alpha": "activation variant",
    "type": "activation variant",
}


def from_settings(match: Match) -> Iterator[RootCause]:
    """Yield a cause for each setting of a call that differs and that the forward pass shows."""
    pair = match.pair
    if pair.reference is None or pair.own is None:
        return
    category = pair.reference.category
    for name, values in differing(pair).items():
        if name not in FORWARD:
            continue
        kind = _KINDS.get(name, "other setting")
        if category == "dropout" or (name in ("rate", "training") and category != "norm"):
            kind = "random state"
        if name == "type" and category != "activation":
            kind = "other setting"
        yield RootCause(
            kind,
            pair.reference.path,
            pair.own.path,
            "forward",
            (told(values, name),),
            f"set {name} to {values[0]} in {pair.own.path or 'the model'}",
            "likely",
        )


def from_weights(case: Case, match: Match) -> Iterator[RootCause]:
    """Yield what is different in the weights of a layer before the first step."""
    pair, (theirs, mine) = match.pair, case.arrays(match)
    if pair.reference is None or pair.own is None or not (theirs or mine):
        return
    if pair.reference.category == "recurrent":
        theirs, mine = _one_bias(theirs), _one_bias(mine)
    lone = set(theirs) ^ set(mine)
    for name in sorted(lone):
        side = "this side lacks" if name in theirs else "this side alone has"
        yield RootCause(
            "other setting",
            match.path,
            pair.own.path,
            "forward",
            (f"{side} the array {name!r}",),
            f"{'add' if name in theirs else 'leave out'} {name} in {pair.own.path}",
            "likely",
        )
    for name in sorted(set(theirs) & set(mine)):
        a, b = theirs[name], mine[name]
        if a.shape == b.shape and np.array_equal(a, b):
            continue
        kind, sentence, fix = _told(name, a, b)
        if kind:
            yield RootCause(kind, match.path, pair.own.path, "forward", (sentence,), fix, "sure")


def _one_bias(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return arrays with the two biases of a recurrent layer added up, where it has two."""
    found = dict(arrays)
    for name in [n for n in arrays if "bias_hh" in n]:
        twin = name.replace("bias_hh", "bias_ih")
        if twin in found and found[twin].shape == found[name].shape:
            found[twin] = found[twin] + found.pop(name)
    return found


def _told(name: str, a: Any, b: Any) -> tuple[str, str, str]:
    if a.shape != b.shape and sorted(a.shape) != sorted(b.shape):
        return "other setting", f"{name} is {a.shape} there and {b.shape} here", "use one shape"
    norm = float(np.linalg.norm(a)) or 1.0
    words = _turned(a, b)
    if words:
        return (
            "layout",
            f"{name} holds the values of the reference {words}",
            f"lay {name} out as the reference does",
        )
    if a.shape != b.shape:
        return "layout", f"{name} is {a.shape} there and {b.shape} here", "turn it"
    relative = float(np.linalg.norm(b.astype(np.float64) - a)) / norm
    if relative < 1e-6:
        return "", "", ""  # rounding of a file format
    sizes = [float(np.square(x, dtype=np.float64).mean()) for x in (a, b)]
    return (
        "initialisation",
        f"before the first step {name} lies {relative:.2g} from the reference; root mean square "
        f"{sqrt(sizes[0]):.3g} there, {sqrt(sizes[1]):.3g} here",
        "start both from the same weights",
    )


def _turned(a: Any, b: Any) -> str:
    """Return how ``b`` holds the values of ``a`` in other places; ``""`` if it does not."""
    if a.ndim < 2:
        if a.size > 1 and np.array_equal(np.sort(a.ravel()), np.sort(b.ravel())):
            return "in another order"
        return ""
    for left in range(a.ndim):
        for right in range(left + 1, a.ndim):
            turned = a.swapaxes(left, right)
            if turned.shape == b.shape and np.array_equal(turned, b):
                return f"transposed (axes {left} and {right})"
    mirrored = np.flip(a, tuple(range(2, a.ndim)))
    if a.ndim > 2 and a.shape == b.shape and np.array_equal(mirrored, b):
        return "mirrored"
    if a.size == b.size and np.array_equal(np.sort(a.ravel()), np.sort(b.ravel())):
        return "in another order"
    return ""
