"""Which layer holds which of a model's weights, by neutral name: the walk of every driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.checkpoint.places import COUNTER, by_depth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["Held", "collect", "hold", "spread"]

Handle = TypeVar("Handle")


@dataclass(frozen=True)
class Held(Generic[Handle]):
    """What one neutral layer holds.

    Attributes:
        path: the layer's path in its own framework.
        category: neutral category, as in ``mpcore.policy.layer.CATEGORIES``.
        handles: whatever stands for an array in the framework, by neutral name.
    """

    path: str
    category: str
    handles: dict[str, Handle]


def hold(
    layers: Iterable[tuple[str, str, Mapping[str, Handle]]],
    neutral: Mapping[str, str] | None = None,
    same: Callable[[Handle], Any] = id,
) -> list[Held[Handle]]:
    """Return every layer with weights; a tied one is where it is first held, and only there.

    Args:
        layers: (path, category, handles by the framework's own names), in the model's order.
        neutral: neutral name of an own one where they differ.
        same: what is equal for two handles of the same weights.

    Examples:
        >>> for held in hold([("in", "linear", {"w": 1}), ("out", "linear", {"w": 1, "b": 2})]):
        ...     print(held.path, held.handles)
        in {'w': 1}
        out {'b': 2}
    """
    found, seen = [], set[Any]()
    for path, category, own in layers:
        new = {n: h for n, h in own.items() if n != COUNTER and same(h) not in seen}
        seen |= {same(handle) for handle in new.values()}
        groups = [("", {(neutral or {}).get(name, name): name for name in new})]
        if category == "recurrent":
            groups = by_depth(new)
        for behind, names in groups:
            if names:
                handles = {name: new[its] for name, its in names.items()}
                found.append(Held(path + behind, category, handles))
    return found


def collect(
    layers: Iterable[Held[Handle]], read: Callable[[Handle], npt.NDArray[np.float32]]
) -> list[LayerWeights]:
    """Return what ``read`` makes of every handle: new float32 arrays in the neutral layout."""
    return [
        LayerWeights(
            held.path, held.category, {name: read(handle) for name, handle in held.handles.items()}
        )
        for held in layers
    ]


def spread(
    layers: Sequence[Held[Handle]],
    weights: Sequence[LayerWeights],
    assign: Callable[[Handle, npt.NDArray[np.float32]], None],
) -> None:
    """Give every handle its array of ``weights``, which are of the same layers in order."""
    for held, given in zip(layers, weights, strict=True):
        for name, handle in held.handles.items():
            assign(handle, given.arrays[name])
