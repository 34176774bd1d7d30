"""What a prepared model offers to ``prepare(on_overflow="keep full")``, and what that offers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from mpcore.amp.arguments import Arguments
    from mpcore.checkpoint.state_file import Checkpoint
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.step.result import StepResult
    from mpcore.step.transaction import Latest

__all__ = ["Insurable", "Keeper", "Overflow", "check_insurable"]

_BY = ("op", "layer")


@dataclass(frozen=True)
class Overflow:
    """One overflow that the loss scale is not to blame for.

    Attributes:
        ago: steps that were begun since, 0 for the latest.
        layer: path of the layer that left the range of its format first.
    """

    ago: int
    layer: str


class Keeper(Protocol):
    """What looks at each step; ``mpcore.tools.diagnosis.keep_full`` has it."""

    overflows: Sequence[Overflow]

    def after(self, result: StepResult) -> None:
        """Look at a step that has ended."""
        ...


class Insurable:
    """The part of a prepared model that can put layers into float32 while it trains.

    Attributes:
        keeper: what decides that; None without ``on_overflow="keep full"``.
    """

    plan: Plan
    arguments: Arguments | None
    _latest: Latest | None
    _steps_done: int

    keeper: Keeper | None = None

    @property
    def kept_full(self) -> tuple[str, ...]:
        """Rules that ``on_overflow="keep full"`` has added so far, to be put into the policy."""
        if self.keeper is None or self.arguments is None:
            return ()
        return tuple(map(str, self.plan.policy.rules[len(self.arguments.policy.rules) :]))

    def replan(self, policy: Policy) -> str:
        """Run under ``policy`` from now on; only its rules are others than before.

        Returns:
            What the user should know of it, for the end of a message.

        Raises:
            BackendError: the framework cannot honour it; nothing has changed.
        """
        msg = f"{type(self).__name__} cannot change its policy; release it and prepare it anew"
        raise BackendError(msg)

    def last_calls(self) -> list[tuple[Latest, bool]]:
        """Return what the latest step was called with, and whether that is all of it.

        False: the loss is not known, and the model's outputs stand for it.
        """
        latest = self._latest
        known = latest is not None and latest.step == self._steps_done
        return [(latest, True)] if latest is not None and known else []

    def alone(self) -> AbstractContextManager[Any]:
        """Return a context in which this rank runs the model without the others."""
        return nullcontext()

    def gathered(self, value: Any) -> list[Any]:
        """Return the value of every rank; all of them call this."""
        return [value]

    def _kept_in(self, saved: Checkpoint) -> Policy:
        """Return the policy to resume under: this one, or with what the saved run kept full."""
        policy = self.plan.policy
        if self.keeper is None or self.arguments is None:
            return policy
        base, theirs = self.arguments.policy.rules, saved.policy.rules
        more = theirs[len(base) :]
        if theirs[: len(base)] != base or any(rule.precision != "full" for rule in more):
            return policy
        return replace(policy, rules=theirs)

    def _resume(self, policy: Policy, overflows: Sequence[tuple[int, str]]) -> Callable[[], None]:
        """Take over what was kept full and what overflowed of late; return what undoes it."""
        keeper, before = self.keeper, self.plan.policy
        if keeper is None:
            return lambda: None
        seen = keeper.overflows
        if policy.rules != before.rules:
            self.replan(policy)
        keeper.overflows = [Overflow(*one) for one in overflows]

        def undo() -> None:
            keeper.overflows = seen
            if self.plan.policy.rules != before.rules:
                self.replan(before)

        return undo


def check_insurable(
    policy: Policy, backend: str, *, replans: bool, sync_overflow: bool, simulated: bool
) -> None:
    """Refuse ``on_overflow="keep full"`` where a layer cannot become full while it trains.

    Raises:
        BackendError: it says what to do instead.
    """
    if not replans:
        msg = f"`on_overflow` must be 'skip' with {backend}, got 'keep full': its plan is fixed"
        raise BackendError(msg)
    if policy.by not in _BY:
        why = {
            "model": "its parameters are stored in 16 bits",
            "graph": "its graph was proved as it is",
        }
        msg = (
            f"`on_overflow` must be 'skip' where by={policy.by!r}, got 'keep full': "
            f"{why[policy.by]}; take a policy by layer or by op, or mp.diagnose(amp)"
        )
        raise BackendError(msg)
    if simulated:
        msg = (
            f"`on_overflow` must be 'skip' where {policy.compute} is simulated, as here, got "
            "'keep full'"
        )
        raise BackendError(msg)
    if not sync_overflow:
        msg = (
            "`sync_overflow` must be True where on_overflow='keep full', got False: the ranks "
            "have to agree on which layer becomes full"
        )
        raise BackendError(msg)
