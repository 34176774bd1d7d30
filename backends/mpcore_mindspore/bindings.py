"""What the train cells of one prepared network share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.numerics.overflow import OverflowDetector
    from mpcore.scaling.transition import LossScale
    from mpcore_mindspore.ascend import EmulatedAscend
    from mpcore_mindspore.master_storage import Storage

__all__ = ["Mover", "Parts"]


@dataclass(frozen=True)
class Mover:
    """One optimizer and the parameters that it moves.

    Attributes:
        optimizer: over float32 Parameters.
        names: paths of its parameters, in its order, as all that follow.
        trained: Parameters of the network.
        storage: what is stored of the 16-bit ones among them, and of their moments.
        rounds_grad: whether each gradient has a simulated dtype.
        tops: largest number of the format of each gradient.
    """

    optimizer: Any
    names: tuple[str, ...]
    trained: tuple[Any, ...]
    storage: Storage
    rounds_grad: tuple[bool, ...]
    tops: tuple[float, ...]


@dataclass
class Parts:
    """What the train cells of one prepared network share.

    Attributes:
        rule: constants of the loss scale.
        network: the network.
        movers: the optimizers by name.
        state: Parameters (scale float32, shape (); counts of LossScaleState, int32, shape (7,)).
        buffers: pairs (buffer or guarded Parameter, its copy).
        window_buffers: the same with other copies; empty until a cell drops micro-batches.
        rounded: pairs (Parameter that is rounded during a step, copy of its float32 value).
        after_step: called without arguments after each real step.
        drops: whether bad micro-batches are left out.
        detector: how an overflow is noticed.
        begun: float32 Parameter, shape (), that takes what a register's ``begin`` returned:
            inside a graph nothing else orders it before the forward pass.
        rank_sum: adds over the ranks that agree; None where there is one, or none agrees.
        device: the emulated device, if the network lives on one.
        frozen: what is stored of 16-bit parameters that no optimizer moves.
        steps: int32 Parameter, shape (1,): real steps so far; moves only where `counts` says so.
        counts: whether real steps are counted, for the noise of stochastic rounding.
        measures: whether each step counts the updates that rounding lost.
        pinned: not empty once float32 values may be in a graph that we do not start: their
            memory stays.
        released: not empty once the network was given back.
    """

    rule: LossScale
    network: Any
    movers: dict[str, Mover]
    state: tuple[Any, Any]
    buffers: list[tuple[Any, Any]]
    window_buffers: list[tuple[Any, Any]]
    rounded: list[tuple[Any, Any]]
    after_step: tuple[Callable[[], Any], ...]
    drops: bool
    detector: OverflowDetector
    begun: Any
    rank_sum: Any
    device: EmulatedAscend | None
    frozen: Storage
    steps: Any
    counts: bool
    measures: bool
    pinned: list[bool]
    released: list[bool]

    @property
    def storages(self) -> list[Storage]:
        """What is stored, by optimizer; what no optimizer moves comes last."""
        return [*(mover.storage for mover in self.movers.values()), self.frozen]

    def give(self) -> None:
        """Give the optimizers' float32 Parameters memory, for a graph that does not."""
        for mover in self.movers.values():
            mover.storage.give()

    def rest(self) -> None:
        """Take that memory back, unless it is pinned."""
        if not self.pinned:
            for mover in self.movers.values():
                mover.storage.take()

    def check_held(self) -> None:
        """Raise BackendError if the network was given back."""
        if self.released:
            msg = (
                "`amp` must not be used after `release()`: its network is as it was before "
                "prepare; call mpcore.prepare again"
            )
            raise BackendError(msg)
