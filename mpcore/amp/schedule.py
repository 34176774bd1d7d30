"""A learning-rate scheduler that moves only with optimizer steps that were taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from mpcore.policy.policy import Policy
    from mpcore.step.result import StepResult

__all__ = ["Scheduler"]


class _Steps(Protocol):
    """What is asked of a prepared model here; ``mpcore.amp.amp.Amp`` is one."""

    last: StepResult | None

    @property
    def policy(self) -> Policy: ...


class Scheduler:
    """A scheduler around the user's own, for the loop that calls ``scheduler.step()`` itself.

    Everything but ``step`` is the wrapped object's, its ``state_dict`` too.

    Attributes:
        wrapped: the user's scheduler.
    """

    def __init__(self, amp: _Steps, scheduler: Any) -> None:
        """Follow the steps of ``amp``."""
        if not callable(getattr(scheduler, "step", None)):
            msg = (
                f"`scheduler` must have a method `step`, got {type(scheduler).__name__}; Keras "
                "schedules and MindSpore's dynamic rates count the steps taken by themselves"
            )
            raise BackendError(msg)
        self.wrapped = scheduler
        self._amp = amp

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Let the scheduler step if the latest step of the optimizer was a real one.

        A skipped step counts where the rule of the loss scale says ``count_skipped_steps``.
        """
        last = self._amp.last
        if last is None or last.stepped or self._amp.policy.scaling.count_skipped_steps:
            return self.wrapped.step(*args, **kwargs)
        return None

    def __getattr__(self, name: str) -> Any:
        """Hand everything else through."""
        if name == "wrapped":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.wrapped, name)
