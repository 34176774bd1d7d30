"""State of an optimizer that is stored in bfloat16 between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn, ops

from mpcore.numerics.master_weights import round_bits
from mpcore_mindspore import rounding
from mpcore_mindspore.master_weights import Memory, half, number_parameter, upper

if TYPE_CHECKING:
    import mindspore as ms

    from mpcore_mindspore.master_kernels import Kernels

__all__ = ["Moment"]


class Moment(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A float32 moment of an optimizer that is bfloat16 between steps.

    Attributes:
        live: the optimizer's Parameter.
        stored: int16 Parameter of the upper halves.
    """

    def __init__(self, live: ms.Parameter, kernels: Kernels | None) -> None:
        """Store what ``live`` holds; ``kernels`` move it in one pass, if there are any."""
        super().__init__(auto_prefix=False)
        self.live = live
        values = round_bits(live.asnumpy()).view(np.int16)
        self.stored = number_parameter(values, f"mpcore.moment.{live.name}")
        self.memory = Memory(live, live.name)
        self.in_one_pass = kernels is not None
        if kernels is not None:
            self.opening, self.closing = kernels.opening_moment, kernels.closing_moment

    def open(self, done: ms.Tensor) -> Any:
        """Make ``live`` what is stored, after ``done``; return a token."""
        if self.in_one_pass:
            value = self.opening(ops.depend(self.stored.value(), done))
            return ops.depend(done, ops.assign(self.live, value))
        return self.memory.write(upper(ops.depend(self.stored.value(), done)), done)

    def close(self, done: ms.Tensor, steps: ms.Tensor) -> Any:
        """Store ``live``, rounded to nearest, after ``done``; return a token."""
        if self.in_one_pass:
            value = self.closing(ops.depend(self.live.value(), done))
            return ops.depend(done, ops.assign(self.stored, value))
        rounded = rounding.rounded(rounding.canonical(self.memory.bits(done)), "nearest")
        return ops.depend(done, ops.assign(self.stored, half(rounded)))
