"""How an overflow is noticed on MindSpore's devices, and how ranks agree on it.

Detectors are Cells: their methods run inside compiled steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops

from mpcore.numerics.overflow import OverflowDetector

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Agreed", "StatusRegister", "Values", "on_all_ranks", "rank_sum"]


def rank_sum() -> Any:
    """Return the collective that adds over all ranks; None where there is one rank.

    Source: nn.TrainOneStepWithLossScaleCell, mindspore 2.10.0, adds its flags up in every
    parallel mode but ``stand_alone``; mindspore.amp.all_finite agrees with nobody. (The minimum
    would do too, but its CPU kernel knows only sums.)
    """
    if ms.get_auto_parallel_context("parallel_mode") == "stand_alone":
        return None
    return ops.AllReduce()


def on_all_ranks(add: Callable[[ms.Tensor], ms.Tensor], finite: ms.Tensor) -> Any:
    """Return whether ``finite`` holds on each rank, element by element; any shape."""
    return add(1.0 - finite.astype(ms.float32)) <= 0


class Values(OverflowDetector, nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """The detector of devices whose values show an overflow, such as CPUs."""

    def __init__(self) -> None:
        """Make a Cell of the contract; its steps have nothing to do."""
        nn.Cell.__init__(self, auto_prefix=False)

    def begin(self) -> Any:
        """Do nothing: values have no memory."""
        return None  # not left out: the graph compiler reads it

    def read(self, grads: tuple[ms.Tensor, ...]) -> Any:
        """Return None: only the values tell."""
        return None

    def reduce(self, each: tuple[Any, ...], unflagged: ms.Tensor) -> tuple[Any, ...]:
        """Return the verdicts as they are."""
        return each

    def clear(self) -> Any:
        """Do nothing."""
        return None


class StatusRegister(Values):
    """Reads the overflow flag of an Ascend device through ``mindspore.amp``. Not run there.

    ``amp.all_finite(grads)`` of mindspore 2.10.0 reads *and clears* the flag where the device
    saturates (910A class; later ones under MS_ASCEND_CHECK_OVERFLOW_MODE=SATURATION_MODE), and
    looks at no value then; elsewhere it looks at the values. So calling it with anything clears
    the flag. Older versions spell it ``status = amp.init_status()`` (which clears, before the
    forward pass) and ``amp.all_finite(grads, status)``; both are spoken. In a compiled graph
    nothing but data orders these calls: each waits for the Parameter that the one before wrote.

    Source: mindspore/amp.py of 2.10.0, run on CPU only; ``init_status``: of 2.0, read only.
    """

    kind, mode, localises = "status_register", "saturation", False

    def __init__(self, module: ModuleType = amp) -> None:
        """Read through ``module``, which has all_finite and perhaps init_status."""
        super().__init__()
        self.all_finite = module.all_finite
        self.init_status = getattr(module, "init_status", None)
        self.status = Parameter(
            Tensor([0.0] * 8, ms.float32), name="mpcore.device_status", requires_grad=False
        )
        self.flag_down = Parameter(
            Tensor(1.0, ms.float32), name="mpcore.device_flag_down", requires_grad=False
        )

    def begin(self) -> Any:
        """Clear the flag, after all earlier steps; return what the forward pass waits for."""
        if self.init_status is not None:
            return ops.assign(self.status, self.init_status())
        earlier = self.flag_down.value()
        return ops.assign(self.flag_down, self.all_finite((earlier,)).astype(ms.float32))

    def read(self, grads: tuple[ms.Tensor, ...]) -> Any:
        """Return whether the flag is down, once all gradients exist."""
        if self.init_status is not None:
            finite = self.all_finite(grads, ops.depend(self.status.value(), grads))
        else:
            finite = self.all_finite(grads)
        ops.assign(self.flag_down, finite.astype(ms.float32))
        return self.flag_down.value() > 0

    def reduce(self, each: tuple[Any, ...], unflagged: ms.Tensor) -> tuple[Any, ...]:
        """Return the verdicts; the flag is one for all optimizers."""
        return tuple([ops.logical_and(finite, unflagged) for finite in each])

    # No `clear`: what a collective leaves in the flag, the next `begin` clears.


class Agreed(Values):
    """Any detector, its verdicts agreed over all ranks before anything changes.

    Attributes:
        inner: the detector of each rank.
    """

    def __init__(self, inner: OverflowDetector, add: Callable[[ms.Tensor], ms.Tensor]) -> None:
        """Let ``add`` reduce the verdicts of ``inner``."""
        super().__init__()
        self.inner, self.add = inner, add
        self.kind, self.mode, self.localises = inner.kind, inner.mode, inner.localises

    def begin(self) -> Any:
        """Begin on this rank."""
        return self.inner.begin()

    def read(self, grads: tuple[ms.Tensor, ...]) -> Any:
        """Read on this rank."""
        return self.inner.read(grads)

    def reduce(self, each: tuple[Any, ...], unflagged: ms.Tensor) -> tuple[Any, ...]:
        """Return the verdicts that hold on every rank: one collective for all optimizers."""
        own = ops.stack(self.inner.reduce(each, unflagged))
        return tuple(ops.unstack(on_all_ranks(self.add, own), axis=0))

    def clear(self) -> Any:
        """Clear on this rank."""
        return self.inner.clear()
