"""A torch scheduler that holds still on skipped steps, and is one of its own class to a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from mpcore.amp.schedule import Scheduler

if TYPE_CHECKING:
    from mpcore.amp.amp import Amp
    from mpcore.step.result import StepResult

__all__ = ["held"]


def held(amp: Amp, scheduler: Any) -> Any:
    """Return an object of the scheduler's own class, over its own state, that may hold still.

    Its ``step`` does nothing if every step since it moved last was skipped, and the rule of the
    loss scale does not count those. ``wrapped`` is the user's own scheduler.
    """
    if not isinstance(scheduler, LRScheduler):
        return Scheduler(amp, scheduler)
    own: type[Any] = type(scheduler)
    taken = _Taken(amp)

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if taken.read():
            return own.step(self, *args, **kwargs)
        return None

    fields = {"step": step, "wrapped": scheduler, "__doc__": own.__doc__, "__module__": __name__}
    found: Any = object.__new__(type(own.__name__, (own,), fields))
    found.__dict__ = vars(scheduler)
    return found


class _Taken:
    """Whether a step was taken since it was asked last."""

    def __init__(self, amp: Amp) -> None:
        self._amp, self._steps, self._any = amp, 0, False
        amp.observers.append(self._note)

    def _note(self, result: StepResult) -> None:
        self._steps += 1
        self._any = self._any or bool(result.stepped)

    def read(self) -> bool:
        """Return whether the scheduler moves, and begin anew."""
        last, steps, moves = self._amp.last, self._steps, self._any
        self._steps, self._any = 0, False
        if self._amp.policy.scaling.count_skipped_steps or last is None:
            return True
        return moves if steps else bool(last.stepped)
