"""Where an update that rounding lost would show, read before and after a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mpcore.step.stagnation import sample

if TYPE_CHECKING:
    from mpcore_mindspore.bindings import OptimizerBinding
    from mpcore_mindspore.master_weights import MasterState

__all__ = ["StoredSample", "lost_and_moving", "new_counts", "samples_of"]


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


def lost_and_moving(before: ms.Tensor, after: ms.Tensor, grad: ms.Tensor) -> Any:
    """Return (lost, updates) of sampled elements; float32, shape (2,)."""
    moving = grad != 0
    lost = ops.logical_and(moving, before == after)
    return ops.stack([lost.astype(ms.float32).sum(), moving.astype(ms.float32).sum()])


def new_counts(index: int, bound: OptimizerBinding) -> Any:
    """Return a Parameter for the counts of what one optimizer moves."""
    zeros = Tensor(np.zeros((len(bound.trained), 2), np.float32))
    return Parameter(zeros, name=f"mpcore.lost.{index}", requires_grad=False)


def samples_of(bound: OptimizerBinding) -> tuple[StoredSample, ...]:
    """Return a sample of each Parameter that one optimizer moves."""
    by_low = {id(state.low): state for state in bound.storage.masters}
    return tuple(StoredSample(param, by_low.get(id(param))) for param in bound.trained)
