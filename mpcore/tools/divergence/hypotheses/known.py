"""Gradients that a known difference of two frameworks explains: its format, arrays and size fit."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from mpcore.capabilities.differences import differences_of
from mpcore.tools.divergence.align import align_weights
from mpcore.tools.divergence.biased import entry_of, of_call
from mpcore.tools.divergence.distance import apart, spacing
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.first import First
    from mpcore.tools.divergence.root_cause import Case

__all__ = ["from_biased", "from_known"]


def from_biased(case: Case) -> Iterator[RootCause]:
    """Yield running variances that one framework keeps biased, if that is all that is off."""
    entry = entry_of(case.reference.backend, case.own.backend)
    for path, distance in case.table.biased.items():
        own = next((b.path for a, b in case.table.pairs if a.path == path), "")
        match = case.table.match(path)
        count = of_call(match.pair.reference if match else None)
        size = (
            f"{path}.running_var moves {distance.found.relative:.2g} apart: {count} values a "
            f"channel, divided by {count} and by {count - 1}"
        )
        if entry is not None:
            why = (entry.what, size, entry.reference)
            told = ("known difference", path, own, "update", why, entry.way_round, "sure")
            yield RootCause(*told)


def from_known(case: Case, first: First) -> Iterator[RootCause]:
    """Yield a known difference if every gradient of the layer that parts is of its kind.

    A sum of n values that is rounded after each is off by n roundings at most: what is farther
    off is no rounding of the sum.
    """
    sides = case.reference, case.own
    if case.reference.backend == case.own.backend or not all(s.optimizer_steps for s in sides):
        return
    match = case.table.match(first.layer)
    call = match.pair.own if match else None
    if call is None or not call.outputs:
        return
    parted = list(_parted(case, first.layer))
    for entry in (e for side in sides for e in differences_of(side.backend)):
        format_ = case.tolerances.narrowest
        if not parted or format_ not in entry.formats or "gradient" not in entry.quantities:
            continue
        values = prod(call.outputs[0].shape)
        if all(
            name.endswith(entry.arrays) and far <= values / size * spacing(format_)
            for name, size, far in parted
        ):
            where = f"{first.layer}.{parted[0][0]}"
            size = f"{where} is {parted[0][2]:.2g} apart, and no other gradient of the layer is"
            told = (first.layer, first.own_layer, "backward")
            why = (entry.what, size, entry.reference)
            yield RootCause("known difference", *told, why, entry.way_round, "likely")
            return


def _parted(case: Case, layer: str) -> Iterator[tuple[str, int, float]]:
    """Yield name, size and relative distance of the gradients of a layer that lie beyond noise."""
    grads = [side.grads[side.optimizer_steps[0]] for side in (case.reference, case.own)]
    for a, b in align_weights(*grads):
        if a.path != layer:
            continue
        tolerance = case.tolerances.gradient(b.path)
        for name in a.arrays.keys() & b.arrays.keys():
            left, right = (np.asarray(x.arrays[name], np.float64) for x in (a, b))
            if left.shape == right.shape:
                far = float(apart(left, right)[0].relative)
                if far > tolerance:
                    yield name, left.size, far
