"""Functions that numpy computes, with torch's backward pass: MindSpore has no kernel on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_Arrays = tuple[Any, ...]


class ByNumpy(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """One call: ``forward`` of arrays, and ``backward`` of inputs, outputs and their gradients."""

    def __init__(
        self,
        forward: Callable[..., _Arrays],
        backward: Callable[[_Arrays, _Arrays, _Arrays], _Arrays],
    ) -> None:
        super().__init__()
        self.forward, self.backward = forward, backward

    def construct(self, *given: Any) -> Any:
        """Return what ``forward`` gives, in the dtype of the first tensor."""
        found = self.forward(*(one.asnumpy() for one in given))
        made = tuple(Tensor(np.ascontiguousarray(one), given[0].dtype) for one in found)
        return made if len(made) > 1 else made[0]

    def bprop(self, *given: Any) -> tuple[Any, ...]:
        """Return a gradient for each tensor."""
        *inputs, out, grad = given
        outs, grads = (one if isinstance(one, tuple | list) else (one,) for one in (out, grad))
        arrays = (tuple(one.asnumpy() for one in some) for some in (inputs, outs, grads))
        found = self.backward(*arrays)
        return tuple(
            Tensor(np.ascontiguousarray(grad), one.dtype)
            for grad, one in zip(found, inputs, strict=True)
        )
