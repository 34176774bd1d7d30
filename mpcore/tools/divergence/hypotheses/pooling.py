"""Equal values in a max-pooling, all of which get its gradient on one side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.capabilities.differences import differences_of
from mpcore.tools.divergence.kinks import whole
from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.divergence.ties import paired

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.first import First
    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.inspection import LayerCall

__all__ = ["from_pooling"]

_OFF = 0.02  # of the largest gradient: what differs by less is the same
_DIFFERENCE = "max_pool_hands_every_tie_the_gradient"


def from_pooling(case: Case, first: First) -> Iterator[RootCause]:
    """Yield the known difference of a backend that hands the gradient to every largest value."""
    match = first.match
    if match is None or paired(match) != "pooling" or case.tolerances.same_backend:
        return
    sides = case.whole(match)
    if sides is None:
        return
    scales = case.reference.inspection.scale, case.own.inspection.scale
    tied = _tied(*(_arrays(call, scale) for call, scale in zip(sides, scales, strict=True)))
    backends = (case.reference.backend, case.own.backend)
    for entry in (e for name in backends for e in differences_of(name) if e.name == _DIFFERENCE):
        if tied:
            yield RootCause(
                "known difference",
                first.layer,
                first.own_layer,
                "backward",
                (entry.what, f"{tied} values of {first.layer} that differ equal another one"),
                entry.way_round,
                "sure",
            )


def _arrays(call: LayerCall, scale: float) -> tuple[Any, Any] | None:
    x, handed = (whole(tensors) for tensors in (call.inputs, call.grad_inputs))
    if x is None or handed is None or x.shape != handed.shape or x.ndim < 3:
        return None
    return x, handed / scale


def _tied(a: tuple[Any, Any] | None, b: tuple[Any, Any] | None) -> int:
    """Return how many gradients differ, if all of them are at values that a channel has twice."""
    if a is None or b is None or a[0].shape != b[0].shape:
        return 0
    off = np.abs(a[1] - b[1]) > _OFF * np.abs(a[1]).max(initial=1e-300)
    for x, _ in (a, b):
        channels = x.reshape(-1, int(np.prod(x.shape[2:])))
        for values, marked in zip(channels, off.reshape(channels.shape), strict=True):
            known, counts = np.unique(values, return_counts=True)
            if (counts[np.searchsorted(known, values[marked])] < 2).any():
                return 0
    return int(off.sum())
