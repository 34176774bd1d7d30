"""Which numbers of a comparison does a known difference of two frameworks explain?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.capabilities.differences import DIFFERENCES, Shown, differences_of
from mpcore.tools.report.layers import RootCause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mpcore.capabilities.differences import Difference
    from mpcore.tools.compare.step_sizes import StepTensors
    from mpcore.tools.report.result import Number

    Steps = Sequence[tuple[StepTensors, StepTensors]]

__all__ = ["explained", "may_explain", "named"]

_SHOWN = 1e-5  # relative: a proof that measures less says that it is not so here
_LEFT = 0.02  # of a difference that a formula may leave, beside the tolerance
_FOLLOWS = ("curve", "accuracy")  # what a wrong gradient changes in its turn


def may_explain(
    backend: str, other: str, compute: str, tensors: Mapping[str, Sequence[str]]
) -> list[Difference]:
    """Return the known differences of one of two backends that may explain what is beyond noise.

    Args:
        backend: of one side.
        other: of the other.
        compute: compute dtype of the policy.
        tensors: by quantity, all that is beyond noise.
    """
    if backend == other:
        return []
    found = [*differences_of(backend), *differences_of(other)]
    return [
        entry
        for entry in found
        if compute in entry.formats
        and any(
            name.endswith(entry.arrays)
            for quantity in entry.quantities
            for name in tensors.get(quantity, ())
        )
    ]


def explained(
    numbers: Sequence[Number],
    tensors: Mapping[str, Sequence[str]],
    entries: Iterable[Difference],
    shown: Mapping[str, Shown],
    steps: Steps,
) -> tuple[Number, ...]:
    """Return the numbers, those that a known difference explains with its name.

    A number is explained if all of its tensors are: the machine shows the difference, it is of
    their kind, and, where there is a formula, that leaves nothing.

    Args:
        numbers: of a pair.
        tensors: by quantity, all that is beyond noise.
        entries: what may explain them.
        shown: by name, what the proofs measured here.
        steps: the single steps of both sides.
    """
    found = {
        entry.name: entry
        for entry in entries
        if entry.name in shown and shown[entry.name].size > _SHOWN
    }
    follows = False
    told = []
    for number in numbers:
        names = _names(number, tensors, found.values(), steps) if number.beyond else ()
        if names:
            # What moves the weights otherwise changes what comes behind it.
            follows = follows or any(found[name].level == "wrong" for name in names)
            follows = follows or number.name == "update"
            titles = ", ".join(found[name].title for name in names)
            told.append(replace(number, known=titles))
        else:
            told.append(number)
    if not follows:
        return tuple(told)
    titles = next(n.known for n in told if n.known)
    return tuple(replace(n, known=titles) if n.beyond and n.name in _FOLLOWS else n for n in told)


def named(
    causes: Sequence[RootCause], numbers: Sequence[Number], shown: Mapping[str, Shown]
) -> tuple[RootCause, ...]:
    """Return root causes, the known differences that explain ``numbers`` before them.

    What was not found, and what only says that statistics move otherwise, is that difference.
    """
    found = [
        (entry, shown[entry.name])
        for entry in DIFFERENCES.values()
        if any(entry.title in number.known for number in numbers) and entry.name in shown
    ]
    if not found:
        return tuple(causes)
    place = next(iter(causes), None)
    where = (place.layer, place.own_layer, place.phase) if place else ("", "", "update")
    heads = [
        RootCause(
            "known difference",
            *where,
            (entry.what, f"its proof measures {each.size:.2g} here; {entry.reference}"),
            entry.way_round,
            "sure",
        )
        for entry, each in found
    ]
    said = {entry.what for entry, _ in found}
    rest = [
        cause
        for cause in causes
        if cause.kind not in ("unknown", "momentum") and not said & set(cause.evidence)
    ]
    return (*heads, *rest)


def _names(
    number: Number,
    tensors: Mapping[str, Sequence[str]],
    entries: Iterable[Difference],
    steps: Steps,
) -> tuple[str, ...]:
    """Return the names of the differences that explain all tensors of a number; else nothing."""
    names = dict[str, None]()
    rest = list(tensors.get(number.name, ()))
    for entry in entries:
        if number.name not in entry.quantities:
            continue
        check = _CHECKS.get(entry.name)
        own = [t for t in rest if t.endswith(entry.arrays) and (not check or check(t, steps))]
        if own:
            names[entry.name] = None
            rest = [t for t in rest if t not in own]
    return tuple(names) if not rest else ()


def _is_biased(tensor: str, steps: Steps) -> bool:
    """Return whether two moves of a running variance follow from n and n - 1 in its variance.

    With share s of the new batch the moves are s (v n / (n - 1) - old) and s (v - old): the one
    is a line in the other and in ``old``, the same at all steps.
    """
    rows = []
    for reference, own in steps:
        before, after = (
            _array(reference, layers, tensor) for layers in (reference.before, reference.after)
        )
        mine = [_array(reference, layers, tensor) for layers in (own.before, own.after)]
        if before is not None and after is not None and mine[0] is not None and mine[1] is not None:
            rows.append((after - before, mine[1] - mine[0], before))
    if not rows:
        return False
    theirs, ours, old = (np.concatenate(column) for column in zip(*rows, strict=True))
    found, *_ = np.linalg.lstsq(np.stack([ours, old], 1), theirs, rcond=None)
    left = np.linalg.norm(theirs - found[0] * ours - found[1] * old)
    away = np.linalg.norm(theirs - ours)
    factor = float(found[0])
    share = float(found[1]) / (factor - 1.0) if factor != 1.0 else 0.0
    factor = factor if factor > 1.0 else 1.0 / factor  # either side may be the biased one
    values = factor / (factor - 1.0) if factor > 1.0 else 0.0
    return bool(left <= _LEFT * away + 1e-6 * np.linalg.norm(theirs)) and (
        1.5 < values < 1e7 and 0.0 < share <= 1.05
    )


def _is_one_bias(tensor: str, steps: Steps) -> bool:
    """Return whether one side moves two biases alike, and the other the first of them alone."""
    first = tensor.replace("bias_hh", "bias_ih")
    for reference, own in steps:
        both = []
        for side in (reference, own):
            moves = []
            for name in (first, tensor):
                before, after = (_array(reference, w, name) for w in (side.before, side.after))
                if before is None or after is None:
                    return False
                moves.append(after - before)
            both.append(moves)
        one, two = both if both[0][0].any() and not both[0][1].any() else both[::-1]
        size = float(np.linalg.norm(two[1]))
        # Whether the first one moves alike on both sides is judged by itself.
        if one[1].any() or not size or np.linalg.norm(two[0] - two[1]) > _LEFT * size:
            return False
    return bool(steps)


def _array(
    reference: StepTensors, layers: Sequence[Any], tensor: str
) -> npt.NDArray[np.float64] | None:
    """Return an array of either side; it is named by the reference's path, layers are in order."""
    path, _, name = tensor.rpartition(".")
    pairs = zip(reference.before, layers, strict=True)
    found = next((mine.arrays.get(name) for ref, mine in pairs if ref.path == path), None)
    return None if found is None else np.asarray(found, np.float64).ravel()


_CHECKS: dict[str, Callable[[str, Steps], bool]] = {
    "biased_moving_variance": _is_biased,
    "biased_moving_variance_in_jax": _is_biased,
    "one_bias_in_lstm": _is_one_bias,
}
