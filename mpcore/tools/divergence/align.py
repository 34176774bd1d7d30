"""Which layer call of one model is which of another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpcore.checkpoint.layer_weights import by_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.inspection import LayerCall

__all__ = ["Pair", "align", "align_weights", "layer_of", "own_rate"]

_NEVER = float("-inf")


@dataclass(frozen=True)
class Pair:
    """Two calls that stand for each other; None where one side has no such layer.

    Attributes:
        reference: call of the reference.
        own: call of the other side.
        places: their places among the calls of their inspections, -1 for none.
    """

    reference: LayerCall | None
    own: LayerCall | None
    places: tuple[int, int] = (-1, -1)

    @property
    def path(self) -> str:
        """Path in the reference, or the own one where it has none."""
        found = self.reference or self.own
        return found.path if found else ""


def align(
    reference: Sequence[LayerCall],
    own: Sequence[LayerCall],
    hidden: tuple[Collection[int], Collection[int]] = ((), ()),
) -> list[Pair]:
    """Return the calls of two inspections side by side, in the reference's order; no ops.

    By path where both sides call the same layers equally often; else in order, so that as much
    as possible of path, category, type and shape agrees (Needleman and Wunsch 1970). Calls at
    ``hidden`` places are left out.
    """
    left, right = (
        [(i, call) for i, call in enumerate(calls) if call.category != "op" and i not in out]
        for calls, out in zip((reference, own), hidden, strict=True)
    )
    if Counter(c.path for _, c in left) == Counter(c.path for _, c in right):
        waiting: dict[str, list[tuple[int, LayerCall]]] = {}
        for entry in right:
            waiting.setdefault(entry[1].path, []).append(entry)
        return [_pair(entry, waiting[entry[1].path].pop(0)) for entry in left]
    return list(_in_order(left, right))


def _pair(left: tuple[int, LayerCall] | None, right: tuple[int, LayerCall] | None) -> Pair:
    places = (left[0] if left else -1, right[0] if right else -1)
    return Pair(left[1] if left else None, right[1] if right else None, places)


def _in_order(
    left: list[tuple[int, LayerCall]], right: list[tuple[int, LayerCall]]
) -> Iterator[Pair]:
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            together = _likeness(left[i][1], right[j][1]) + best[i + 1][j + 1]
            best[i][j] = max(together, best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < len(left) and j < len(right):
        together = _likeness(left[i][1], right[j][1]) + best[i + 1][j + 1]
        if together == best[i][j] and together > _NEVER:
            yield _pair(left[i], right[j])
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            yield _pair(left[i], None)
            i += 1
        else:
            yield _pair(None, right[j])
            j += 1
    yield from (_pair(entry, None) for entry in left[i:])
    yield from (_pair(None, entry) for entry in right[j:])


def _likeness(a: LayerCall, b: LayerCall) -> float:
    """Return how much speaks for two calls being the same layer; -inf: they cannot be."""
    if (a.category == "container") != (b.category == "container"):
        return _NEVER
    shapes = [[x.shape for x in call.outputs[:1]] for call in (a, b)]
    if a.path != b.path and a.category != b.category:
        return _NEVER
    last = a.path.rpartition(".")[2] == b.path.rpartition(".")[2]
    return (
        4.0 * (a.path == b.path)
        + 2.0 * (a.category == b.category)
        + 2.0 * (shapes[0] == shapes[1])
        + 1.0 * last
        + 0.5 * (a.type == b.type)
    )


def align_weights(
    reference: Sequence[LayerWeights], own: Sequence[LayerWeights]
) -> list[tuple[LayerWeights, LayerWeights]]:
    """Return the layers with weights of two models side by side; those without partner left out.

    By path where the paths are the same, else one after the other within a category, layers of
    one shape by name where both sides have the same ones (``by_names``).
    """
    if [w.path for w in reference] == [w.path for w in own]:
        return list(zip(reference, own, strict=True))
    by_path = {w.path: w for w in own}
    if {w.path for w in reference} & set(by_path):
        return [(w, by_path[w.path]) for w in reference if w.path in by_path]
    found = []
    waiting: dict[str, list[LayerWeights]] = {}
    for layer in by_names(own, reference):
        waiting.setdefault(layer.category, []).append(layer)
    for layer in reference:
        if waiting.get(layer.category):
            found.append((layer, waiting[layer.category].pop(0)))
    return found


def layer_of(path: str, paths: Sequence[str]) -> str:
    """Return the layer among ``paths`` that ``path`` is or lies in: the longest; ``""`` for none.

    Examples:
        >>> layer_of("block.rnn:1", ["block", "block.rnn", "block.rnn2"])
        'block.rnn'
    """
    inside = [p for p in paths if p and path.startswith(p) and not path[len(p) :][:1].isalnum()]
    return max(inside, key=len, default="")


def own_rate(layer: LayerWeights, name: str) -> bool:
    """Return whether an array moves at the optimizer's rate.

    The neutral bias of a recurrent layer is the sum of two in some frameworks: each of them moves.
    """
    return not (layer.category == "recurrent" and "bias" in name)
