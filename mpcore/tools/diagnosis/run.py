"""The examination of one skipped step: run again, found, tried, told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.backend import find_backend
from mpcore.errors import BackendError
from mpcore.numerics.dtypes import FORMATS
from mpcore.policy.policy import Policy
from mpcore.tools.diagnosis.constants import lint
from mpcore.tools.diagnosis.fix import Again, Fix, Search
from mpcore.tools.diagnosis.locate import Finding, headroom, locate, passes
from mpcore.tools.diagnosis.record import PostMortem
from mpcore.tools.diagnosis.words import advice, sentence
from mpcore.tools.inspection import Inspection, Request, inspect

if TYPE_CHECKING:
    from collections.abc import Collection

    from mpcore.amp.amp import Amp
    from mpcore.policy.plan import Plan
    from mpcore.scaling.loss_scale import LossScale
    from mpcore.step.result import StepResult

__all__ = ["EVERYTHING", "Case", "case_of", "examine", "look"]

EVERYTHING = frozenset(("*",))
_LOWEST = 2.0**-24
_FRAMEWORKS = {"torch": "torch", "tensorflow": "tf", "mindspore": "mindspore"}
"""What ``mpcore.numerics.ops`` calls the frameworks."""


@dataclass(frozen=True)
class Case:
    """What is known of a step before it is run again.

    Attributes:
        plan: what every layer does.
        scale: loss scale of the step.
        rule: of the loss scale.
        step: its number, from 1; 0 if that is not known.
        names: the parameters that it would have moved; empty for all.
        framework: whose names ops have, as in ``mpcore.numerics.ops``; ``""`` for none.
    """

    plan: Plan
    scale: float
    rule: LossScale
    step: int = 0
    names: Collection[str] = ()
    framework: str = ""


def look(
    model: Any, amp: Amp | None, loss_fn: Any, batch: tuple[Any, ...], request: Request
) -> Inspection:
    """Inspect a batch that may overflow."""
    with np.errstate(over="ignore", invalid="ignore"):  # sums of inf and -inf are expected
        return inspect(model, amp, loss_fn, *batch, request=request)


def case_of(model: Any, amp: Amp, result: StepResult | None) -> Case:
    """Return what ``amp`` and the result of a step tell."""
    plan, framework = amp.plan, _FRAMEWORKS.get(find_backend(model).name, "")
    rule = amp.policy.scaling
    if result is None:
        return Case(plan, amp.scale, rule, framework=framework)
    return Case(plan, result.scale, rule, result.step, frozenset(result.names), framework)


def examine(again: Again, case: Case) -> PostMortem:
    """Return why a step was skipped; nothing of what it was run on changes.

    Args:
        again: inspects the step's batch at the weights that it had, under a policy; None for the
            step's own.
        case: what is known of the step.

    Raises:
        BackendError: the batch does not overflow when it is run again.
    """
    seen = again(None, Request(ops=EVERYTHING, scale=case.scale))
    reference = again(Policy.named("float32"), Request(ops=EVERYTHING, scale=1.0))
    computes = {entry.path: entry.compute for entry in case.plan.layers}
    finding = locate(seen, reference, computes, case.names)
    if finding is None:
        msg = (
            "the batch does not overflow when it is run again, at the same weights and the scale "
            f"{case.scale:g}: was it changed in place since, or does the model draw random "
            "numbers of its own? Give the batch by hand: mp.diagnose(amp, result, loss_fn, *batch)"
        )
        raise BackendError(msg)
    safe = _safe_scale(again, case) if finding.phase in ("backward", "unscale") else None
    search = Search(again, case.plan, reference, case.scale, case.names, case.framework)
    fix = search.run(finding) if finding.phase not in ("unscale", "clip") else Fix(None, None, ())
    return _record(case, finding, fix, safe, seen, computes)


def _record(
    case: Case,
    finding: Finding,
    fix: Fix,
    safe: float | None,
    seen: Inspection,
    computes: dict[str, str],
) -> PostMortem:
    limit = FORMATS[finding.dtype].max
    constants = lint(seen, computes)
    return PostMortem(
        case.step,
        finding.phase,
        finding.layer,
        finding.type,
        finding.op,
        finding.dtype,
        finding.peak,
        limit,
        case.scale,
        safe,
        constants,
        fix.rule,
        None if fix.policy is None else str(fix.policy),
        fix.rule is not None,
        fix.tried,
        advice(finding, fix, safe, case.rule, constants, case.scale),
        sentence(finding, limit, case.step),
    )


def _safe_scale(again: Again, case: Case) -> float | None:
    """Return the largest power of two at which the batch passes; None if none of them does."""

    def passing(scale: float) -> Inspection | None:
        found = again(None, Request(scale=scale))
        return found if passes(found, case.names) else None

    start = next(
        (s for s in (1.0, 2.0**-8, 2.0**-16, _LOWEST) if passing(s) is not None),
        None,
    )
    if start is None:
        return None
    low, high = start, max(case.scale, start)
    found = passing(low)
    # What can be seen tells where to look; what happens inside of ops is found by halving.
    guess = low * _power_below(headroom(found)) if found is not None else low
    guess = min(max(guess, low), _power_below(high))
    while guess > low and passing(guess) is None:
        guess /= 2
    while guess * 2 <= high and guess * 2 != case.scale and passing(guess * 2) is not None:
        guess *= 2
    return guess


def _power_below(value: float) -> float:
    """Return the largest power of two that is at most ``value`` > 0, and at most 2**127."""
    power = 1.0
    while power * 2 <= value and power < 2.0**127:
        power *= 2
    return power
