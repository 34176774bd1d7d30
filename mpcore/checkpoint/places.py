"""Where the neutral arrays of a layer are in a framework's own model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COUNTER", "Place", "by_depth"]

COUNTER = "num_batches_tracked"
"""A counter of torch's BatchNorm that weights nothing and that only torch (and mint) has."""

_DEEP = re.compile(r"(.+_l)(\d+)(_reverse)?")


@dataclass(frozen=True)
class Place:
    """The parameters that one neutral array is made of.

    Attributes:
        names: their names in the framework's own files; several are joined, first axis first.
        changes: what happens to them on the way to the neutral layout, a few words each.
        tied: other names of the same parameter.
    """

    names: tuple[str, ...]
    changes: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()


def by_depth(names: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Split the arrays of a recurrent layer of several into one neutral layer each.

    Keras stacks layers where torch and MindSpore have one with ``num_layers``.

    Args:
        names: such as ``weight_ih_l0``, ``bias_hh_l1_reverse``.

    Returns:
        By depth: what is put behind the layer's path, and own name by neutral name.

    Examples:
        >>> by_depth(["weight_ih_l0", "weight_ih_l1"])
        [('', {'weight_ih_l0': 'weight_ih_l0'}), ('.l1', {'weight_ih_l0': 'weight_ih_l1'})]
    """
    depths: dict[int, dict[str, str]] = {}
    for name in names:
        found = _DEEP.fullmatch(name)
        depth = int(found[2]) if found else 0
        neutral = f"{found[1]}0{found[3] or ''}" if found else name
        depths.setdefault(depth, {})[neutral] = name
    return [(f".l{depth}" if depth else "", own) for depth, own in sorted(depths.items())]
