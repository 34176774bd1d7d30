"""Where an update that rounding lost would show, read before and after a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn, ops

from mpcore.step.stagnation import sample

if TYPE_CHECKING:
    import mindspore as ms

    from mpcore_mindspore.master_weights import MasterState

__all__ = ["StoredSample"]


class StoredSample(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Elements of one parameter that an update would change: ``sample(done)`` reads them."""

    def __init__(self, param: ms.Parameter, master: MasterState | None) -> None:
        """Look at ``param``, or at what ``master`` stores of it."""
        super().__init__(auto_prefix=False)
        self.param, self.is_low = param, master is not None
        self.master: Any = master
        self.places = Tensor(sample(int(np.prod(param.shape))).astype(np.int32))

    def construct(self, done: ms.Tensor) -> Any:
        """Return the sampled elements of what is stored."""
        if self.is_low:
            return self.elements(self.master.stored_values(done))
        return self.elements(ops.depend(self.param.value(), done))

    def elements(self, value: ms.Tensor) -> Any:
        """Return the sampled elements of ``value``; 1-d."""
        return ops.gather(value.reshape((-1,)), self.places, 0)
