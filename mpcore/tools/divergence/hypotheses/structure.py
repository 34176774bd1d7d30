"""What structure shows in gradients: tied weights, rows without gradient, batches in parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.root_cause import Case

__all__ = ["from_parts", "from_rows", "from_ties", "gradient_factor", "parts"]

_LEAST = 4  # values of an array that may be tied: fewer are equal by chance
_NEAR = 0.02  # relative: gradients that agree, in any format


# --- tied weights


def from_ties(case: Case) -> Iterator[RootCause]:
    """Yield arrays that are one on one side, and two that move apart on the other."""
    yield from _listed_once(case)
    names = {a.path: b.path for a, b in case.table.pairs}
    tied = _tied(case.reference), _tied(case.own)
    for number, (here, there) in enumerate((tied, tied[::-1])):
        rename = names if number == 0 else {b: a for a, b in names.items()}
        other = (case.own, case.reference)[number]
        for left, right in here:
            pair = tuple((rename.get(path, path), name) for path, name in (left, right))
            if pair in there or pair[::-1] in there or not _apart(other, *pair):
                continue
            where, mine = (left[0], pair[0][0]) if number == 0 else (pair[0][0], left[0])
            who = ("the reference", "this side")[number]
            sentence = (
                f"{left[0]}.{left[1]} and {right[0]}.{right[1]} are one array in {who}; on the "
                "other side they begin alike and move apart"
            )
            fix = f"tie {pair[0][0]} and {pair[1][0]} on this side"
            if number:
                fix = f"give {left[0]} and {right[0]} weights of their own on this side"
            yield RootCause("tied weights", where, mine, "update", (sentence,), fix, "sure")


def _listed_once(case: Case) -> Iterator[RootCause]:
    """Yield a layer that both sides call and one alone holds weights of its own for."""
    sides = case.reference, case.own
    if not all(side.weights for side in sides):
        return
    held = [_arrays(side.weights[0]) for side in sides]
    called = [{call.path for call in side.inspection.calls} for side in sides]
    for more, less in ((1, 0), (0, 1)):
        paths = {path for path, _ in held[less]}
        for key in held[more]:
            if key[0] in paths or key[0] not in called[less]:
                continue
            twins = [k for k in held[more] if k != key and k in held[less]]
            twin = next((k for k in twins if _apart(sides[more], k, key)), None)
            if twin is None:
                continue
            who = ("the reference", "this side")
            sentence = (
                f"{who[more]} holds {key[0]}.{key[1]} beside {twin[0]}.{twin[1]}: they begin alike "
                f"and move apart; in {who[less]} they are one array"
            )
            fix = f"tie {key[0]} and {twin[0]} on this side"
            if not more:
                fix = f"give {key[0]} weights of its own on this side"
            yield RootCause("tied weights", twin[0], twin[0], "update", (sentence,), fix, "sure")


_Key = tuple[str, str]


def _arrays(layers: Any) -> dict[_Key, Any]:
    return {(w.path, name): a for w in layers for name, a in w.arrays.items()}


def _tied(side: Evidence) -> set[tuple[_Key, _Key]]:
    """Return the pairs of arrays that are the same before and after every step."""
    if len(side.weights) < 2:
        return set()
    first, last = _arrays(side.weights[0]), _arrays(side.weights[-1])
    groups: dict[bytes, list[_Key]] = {}
    for key, array in first.items():
        if array.size >= _LEAST and np.ptp(array) > 0 and not key[1].startswith("running"):
            groups.setdefault(array.tobytes(), []).append(key)
    return {
        (a, b)
        for group in groups.values()
        for i, a in enumerate(group)
        for b in group[i + 1 :]
        if np.array_equal(last[a], last[b]) and not np.array_equal(first[a], last[a])
    }


def _apart(side: Evidence, left: _Key, right: _Key) -> bool:
    """Return whether two arrays begin alike and do not end so."""
    first, last = (_arrays(layers) for layers in (side.weights[0], side.weights[-1]))
    if left not in first or right not in first:
        return False
    return np.array_equal(first[left], first[right]) and not np.array_equal(last[left], last[right])


# --- rows of an embedding


def from_rows(case: Case, layer: str) -> Iterator[RootCause]:
    """Yield rows of a table that get a gradient on one side alone: padding_idx."""
    sides = [side.optimizer_steps for side in (case.reference, case.own)]
    match = case.table.match(layer)
    call = match.pair.reference if match else None
    if not all(sides) or call is None or call.category != "embedding" or match is None:
        return
    own_path = match.pair.own.path if match.pair.own else ""
    found = [
        _arrays(side.grads[side.optimizer_steps[0]]).get((path, "weight"))
        for side, path in ((case.reference, layer), (case.own, own_path))
    ]
    tables = [table for table in found if table is not None]
    if len(tables) < 2 or tables[0].shape != tables[1].shape:
        return
    live = [np.abs(table).reshape(len(table), -1).max(1) > 0 for table in tables]
    rows = np.flatnonzero(live[0] != live[1])
    rest = live[0] & live[1]
    norm = float(np.linalg.norm(tables[0][rest])) or 1.0
    if not len(rows) or np.linalg.norm((tables[1] - tables[0])[rest]) > _NEAR * norm:
        return
    which = ", ".join(map(str, rows[:5]))
    lacks = live[0][rows].all()
    side = "this side" if lacks else "the reference"
    sentence = f"row {which} of {layer}.weight gets no gradient in {side}; all others agree"
    how = "leave out" if lacks else "set"
    fix = f"{how} padding_idx={which} (or a mask of that token) on this side"
    yield RootCause("other setting", layer, own_path, "backward", (sentence,), fix, "sure")


# --- a batch in parts


def parts(case: Case) -> tuple[int, int]:
    """Return into how many parts each side cuts the batch: how often it calls its layers."""
    counts = [
        Counter(c.path for c in side.inspection.calls if c.category not in ("op", "container"))
        for side in (case.reference, case.own)
    ]
    both = set(counts[0]) & set(counts[1])
    ratios = {(counts[0][path], counts[1][path]) for path in both}
    if len(both) < 2 or len({a / b for a, b in ratios}) != 1:
        return 1, 1
    (a, b), *_ = ratios
    if a == b or max(a, b) % min(a, b):
        return 1, 1
    rows = [
        next((c.inputs[0].shape[0] for c in s.inspection.calls if c.path in both and c.inputs), 0)
        for s in (case.reference, case.own)
    ]
    return (a // min(a, b), b // min(a, b)) if rows[0] * a == rows[1] * b else (1, 1)


def from_parts(case: Case) -> Iterator[RootCause]:
    """Yield that a batch in parts has gradients that are added up, not averaged."""
    cut = parts(case)
    number, who = (cut[1], "this side") if cut[1] > 1 else (cut[0], "the reference")
    factor = gradient_factor(case)
    if number < 2 or factor is None or abs(factor - 1) <= _NEAR:
        return
    times = factor if cut[1] > 1 else 1 / factor
    sentence = (
        f"{who} runs the batch in {number} parts, and its gradients are {times:.3g} times those "
        "of the whole batch: they are added up, not averaged"
    )
    fix = f"divide the loss of each part by {number} in {who}"
    sure = "sure" if abs(times / number - 1) < _NEAR else "likely"
    yield RootCause("loss reduction", "(loss)", "(loss)", "loss", (sentence,), fix, sure)


def gradient_factor(case: Case) -> float | None:
    """Return how many times larger all gradients of the own side are; None where there are none."""
    sides = [side.optimizer_steps for side in (case.reference, case.own)]
    if not all(sides):
        return None
    tables = [_arrays(side.grads[side.optimizer_steps[0]]) for side in (case.reference, case.own)]
    names = {a.path: b.path for a, b in case.table.pairs}
    inner = square = 0.0
    for (path, name), grad in tables[0].items():
        mine = tables[1].get((names.get(path, path), name))
        if mine is not None and mine.shape == grad.shape:
            inner += float((mine.astype(np.float64) * grad).sum())
            square += float(np.square(grad, dtype=np.float64).sum())
    return inner / square if square else None
