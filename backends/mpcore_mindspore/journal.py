"""What an eager step has done so far, and how one that an error has met is brought to an end.

A graph runs whole or not at all; eager mode stops at any line. From the moment its journal is
opened a step is either taken back, while no optimizer has moved, or brought to its end.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mpcore._lib.interrupts import Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_mindspore.step import TrainCell
    from mpcore_mindspore.watch import Mover

_HEAD = 2  # the line of the loop in TrainCell.follow

__all__ = ["Begin", "End", "Followed", "Journal", "mend"]

_TORN = (
    "mpcore: the optimizer failed inside its own step, and what of its weights and state has moved "
    "is not known: load a checkpoint"
)
_WHOLE = (
    "mpcore: the step was complete but for this: weights, optimizers, buffers and loss scale are "
    "those after it"
)


class Journal:
    """The commit of one eager step.

    Attributes:
        hold: holds Ctrl-C back until the step has ended.
        entry: (stepped, finite, gradients, new state) of the commit that is under way.
        done: whether it has ended.
        followed: whether all of ``after_step`` was called.
        steps: optimizer steps before it, where they are counted.
    """

    def __init__(self, hold: Callable[[], None]) -> None:
        self.hold = hold
        self.entry: Any = None
        self.done = self.followed = False
        self.steps: Any = None

    def clear(self, movers: tuple[Mover, ...]) -> None:
        """Begin a step."""
        self.entry, self.done, self.followed = None, False, False
        for mover in movers:
            mover.began = mover.ended = False


_NUMBERS = count()


class Begin(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Opens the journal in eager mode; in a graph it is not there."""

    def __init__(self, journal: Journal, steps: ms.Parameter | None) -> None:
        super().__init__(auto_prefix=False)
        self.journal = journal
        object.__setattr__(self, "steps", steps)

    def __call__(self, finite: Any, *entry: Any) -> Any:
        """Note what the commit was asked for."""
        journal = self.journal
        journal.hold()
        if self.steps is not None:
            journal.steps = self.steps.asnumpy().copy()
        journal.entry = (finite, *entry)
        return finite

    def construct(self, finite: Any, *entry: Any) -> Any:
        """Do nothing."""
        return finite


class Followed(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Notes in eager mode that ``after_step`` was called; in a graph it is not there."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(auto_prefix=False)
        self.journal = journal

    def __call__(self, done: Any) -> Any:
        """Note it."""
        self.journal.followed = True
        return done

    def construct(self, done: Any) -> Any:
        """Do nothing."""
        return done


class End(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Closes the journal in eager mode; a graph counts its runs instead.

    Attributes:
        runs: of the graphs of one train cell; int32 Parameter, shape (1,), in a list: no
            checkpoint holds it.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(auto_prefix=False)
        self.journal = journal
        name = f"mpcore.runs.{next(_NUMBERS)}"  # one graph may hold several cells
        self.runs = (Parameter(Tensor([0], ms.int32), name=name, requires_grad=False),)
        self.one = Tensor([1], ms.int32)

    def __call__(self, scale: Any) -> Any:
        """Note that the step is whole."""
        self.journal.done = True
        return scale

    def construct(self, scale: Any) -> Any:
        """Count this run."""
        return ops.depend(scale, ops.assign_add(self.runs[0], self.one))

    def counted(self) -> int:
        """Return how often a graph has ended; waits for the device."""
        return int(self.runs[0].asnumpy()[0])


def mend(cell: TrainCell, fault: BaseException) -> None:
    """Bring an eager step that ``fault`` has met to the state before it, or after it."""
    journal = cell.journal
    if journal.done:
        return
    with Held():
        if journal.entry is None:
            cell.restore()
            return
        movers = [m for m, moves in zip(cell.optimizers, _moves(journal), strict=True) if moves]
        if any(mover.began and mover.torn for mover in movers):
            fault.add_note(_TORN)
        if movers and not any(mover.has_moved() for mover in movers):
            cell.restore()
            return
        _finish(cell, fault)
        journal.done = True
        fault.add_note(_WHOLE)


def _moves(journal: Journal) -> list[bool]:
    _, stepped, *_ = journal.entry
    return [bool(each) for each in stepped]


def _finish(cell: TrainCell, fault: BaseException) -> None:
    journal = cell.journal
    finite, _, grads, new = journal.entry
    done, moves = finite, _moves(journal)
    if cell.counts_steps:  # it may have been counted: rounding by chance draws by that number
        ops.assign(cell.steps, Tensor(journal.steps, ms.int32))
    for index, mover in enumerate(cell.optimizers):
        if not moves[index]:
            for live, saved in cell.assigned[index]:
                ops.assign(live, saved)
        elif not mover.has_moved():
            cell.move(index, grads, done)
        elif cell.closes[index] or cell.opens[index]:
            cell.closers[index](done, cell.steps.value())  # the same again, from the float32 values
    if bool(finite):
        _follow(cell, fault)
    else:
        cell.undo(done)
    if cell.counts_steps:
        ops.assign(cell.steps, Tensor(journal.steps + np.int32(any(moves)), ms.int32))
    ops.assign(cell.scale, new[0])
    ops.assign(cell.counts, ops.stack(new[1:]))


def _follow(cell: TrainCell, fault: BaseException) -> None:
    """Call what of ``after_step`` was not called."""
    if cell.journal.followed:
        return
    for call in cell.after_step[_called(cell, fault) :]:
        try:
            call()
        except Exception as late:  # the others are to be called
            fault.add_note(f"mpcore: after that, {late!r}")


def _called(cell: TrainCell, fault: BaseException) -> int:
    """Return how many of ``after_step`` were called, as the traceback tells."""
    place = fault.__traceback__
    while place is not None:
        if place.tb_frame.f_code is type(cell).follow.__code__:
            number = int(place.tb_frame.f_locals.get("number", -1))
            head = place.tb_lineno == place.tb_frame.f_code.co_firstlineno + _HEAD
            # In the head of the loop `number` was called, and in a call it will not be repeated.
            return number + (head or place.tb_next is not None)
        place = place.tb_next
    return 0
