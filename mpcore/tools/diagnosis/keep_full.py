"""``prepare(on_overflow="keep full")``: a layer that keeps overflowing is float32 for good.

An overflow counts where no loss scale mends it: in the forward pass, or in the backward pass at
a scale of 1 or less. Two of one layer within ten steps, and the fewest layers under which the
batch passes, found by running it again, become full. There is no way back and no schedule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.amp.insurance import Overflow
from mpcore.policy.policy import Policy
from mpcore.tools.diagnosis.diagnose import parts_of
from mpcore.tools.diagnosis.fix import Search
from mpcore.tools.diagnosis.locate import Finding, locate, passes
from mpcore.tools.diagnosis.run import EVERYTHING, case_of, look
from mpcore.tools.inspection import Inspection, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.amp.amp import Amp
    from mpcore.step.result import StepResult
    from mpcore.step.transaction import Latest
    from mpcore.tools.diagnosis.run import Case

__all__ = ["KeepFull"]

_TIMES, _WITHIN = 2, 10  # overflows of one layer, and the steps they lie in


@dataclass(frozen=True)
class _Found:
    """Where one rank saw the step overflow, and what it takes to run that part again."""

    finding: Finding
    latest: Latest
    batch: tuple[Any, ...]
    reference: Inspection


class KeepFull:
    """Looks at each step of a prepared model.

    Attributes:
        overflows: those of the last ten steps, the latest last.
    """

    def __init__(self, amp: Amp) -> None:
        """Look at the steps of ``amp`` from now on."""
        self._amp = amp
        self._told: set[str] = set()
        self.overflows: Sequence[Overflow] = ()

    def after(self, result: StepResult) -> None:
        """Look at a step that has ended; where it overflowed, run its batch again."""
        older = [replace(one, ago=one.ago + 1) for one in self.overflows]
        self.overflows = [one for one in older if one.ago < _WITHIN]
        if all(result.stepped_by.values()) and not result.dropped:
            return
        found = self._locate(result)
        layer, rank = self._agreed(found)
        if layer is None:
            return
        self.overflows = [*self.overflows, Overflow(0, layer)]
        if Counter(one.layer for one in self.overflows)[layer] >= _TIMES:
            self._keep(layer, rank, found)

    def _locate(self, result: StepResult) -> _Found | None:
        """Return where this rank's part of the step left a format, if no scale mends that."""
        case, calls = case_of(self._amp._trained_model, self._amp, result), self._amp.last_calls()
        if not calls:
            self._tell("", "its batch is not known, it ran in a graph or a loop of your own")
        for latest, whole in calls:
            for batch in parts_of(latest):
                try:
                    found = self._locate_in(case, latest, batch, whole=whole)
                except Exception as error:  # a loss that runs but once: training goes on
                    self._tell("", f"its batch cannot be run again: {error}")
                    return None
                if found is not None:
                    return found
        return None

    def _locate_in(
        self, case: Case, latest: Latest, batch: tuple[Any, ...], *, whole: bool
    ) -> _Found | None:
        names = case.names if whole else ()
        scale = case.scale if whole else 1.0
        seen = self._run(latest, batch, None, Request(ops=EVERYTHING, scale=scale))
        if passes(seen, names):
            return None
        exact = Policy.named("float32")
        reference = self._run(latest, batch, exact, Request(ops=EVERYTHING, scale=1.0))
        computes = {entry.path: entry.compute for entry in case.plan.layers}
        finding = locate(seen, reference, computes, names)
        if finding is None or finding.anyway or not _unmendable(finding, case.scale, whole=whole):
            return None
        return _Found(finding, latest, batch, reference)

    def _agreed(self, found: _Found | None) -> tuple[str | None, int]:
        """Return the layer that all ranks take, and the first rank that saw it."""
        layers = self._amp.gathered(None if found is None else self._culprit(found.finding))
        for rank, layer in enumerate(layers):
            if layer is not None:
                return layer, rank
        return None, 0

    def _culprit(self, finding: Finding) -> str:
        return finding.layer or next(iter(finding.before), "")

    def _keep(self, layer: str, rank: int, found: _Found | None) -> None:
        """Let every rank take the rule that the first one with the overflow has found."""
        mine = None if found is None else self._rules(found)
        rules = self._amp.gathered(mine)[rank]
        if rules is None:
            self._tell(layer, "no rule for layers mends it; mp.diagnose(amp) tells more")
            return
        before = self._amp.policy
        note = self._amp.replan(replace(before, rules=rules))
        self.overflows = [one for one in self.overflows if one.layer != layer]
        kept = "; ".join(str(rule) for rule in rules[len(before.rules) :])
        self._tell(layer, f"it is float32 from now on; put this into the policy: {kept}{note}")

    def _rules(self, found: _Found) -> tuple[Any, ...] | None:
        amp, case = self._amp, case_of(self._amp._trained_model, self._amp, None)

        def again(policy: Policy | None, request: Request) -> Inspection:
            return self._run(found.latest, found.batch, policy, request)

        # At a scale of 1: that gradients overflow at a larger one is the loss scale's matter.
        scale = min(1.0, amp.scale)
        search = Search(again, case.plan, found.reference, scale, (), case.framework)
        fix = search.run_layers(found.finding)
        return None if fix.policy is None else fix.policy.rules

    def _run(
        self, latest: Latest, batch: tuple[Any, ...], policy: Policy | None, request: Request
    ) -> Inspection:
        amp, model = self._amp, self._amp._trained_model
        with amp.alone(), amp._replayed(latest.random), np.errstate(all="ignore"):
            if policy is None:
                return look(model, amp, latest.loss_fn, batch, request)
            with amp._under(policy) as wrapped:
                return look(model, None, wrapped(latest.loss_fn), batch, request)

    def _tell(self, layer: str, what: str) -> None:
        if layer + what in self._told:
            return
        self._told.add(layer + what)
        step = self._amp._steps_done
        name = (
            f"`{layer}` overflowed twice within {_WITHIN} steps" if layer else "a step overflowed"
        )
        msg = f"on_overflow='keep full': {name}, last in step {step}; {what}"
        self._amp._warn(msg)


def _unmendable(finding: Finding, scale: float, *, whole: bool) -> bool:
    """Return whether a smaller loss scale would not help."""
    if finding.phase == "forward":
        return True
    return whole and finding.phase == "backward" and scale <= 1.0
