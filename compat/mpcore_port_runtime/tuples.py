"""One value for each axis, sums on the way, and names in states without what is in front of them.

Sources: ``_ntuple`` in torch/nn/modules/utils.py, torch 2.13.0: a word is a tuple of its letters;
``consume_prefix_in_state_dict_if_present`` there;
``_accumulate`` in torch/_utils.py of torch 1.13.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["accumulated", "each_of", "pair", "quadruple", "single", "triple", "without_prefix"]


def accumulated(iterable: Iterable[Any], fn: Callable[[Any, Any], Any] = operator.add) -> Any:
    """Return torch._utils._accumulate: the sums of the first, of the first two, ..."""
    return accumulate(iterable, fn)


def each_of(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """Return torch.nn.modules.utils._ntuple: what makes ``n`` values of one."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


single = each_of(1, "_single")
pair = each_of(2, "_pair")
triple = each_of(3, "_triple")
quadruple = each_of(4, "_quadruple")


def without_prefix(state_dict: dict[str, Any], prefix: str) -> None:
    """Take ``prefix`` from the names in a state, in place; what has another name keeps it."""
    for key in list(state_dict):
        if key.startswith(prefix):
            state_dict[key[len(prefix) :]] = state_dict.pop(key)
