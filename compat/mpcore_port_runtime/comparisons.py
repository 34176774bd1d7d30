"""A tensor beside a number or an array of numpy: MindSpore says that they differ, all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def _with_numpys(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a comparison that takes numpy's numbers and arrays as torch's tensors do."""

    def compared(self: Any, other: Any) -> Any:
        if isinstance(other, np.generic):
            other = other.item()
        elif isinstance(other, np.ndarray):
            other = Tensor(other)
        return compare(self, other)

    return compared


Tensor.__eq__ = _with_numpys(Tensor.__eq__)
Tensor.__ne__ = _with_numpys(Tensor.__ne__)
