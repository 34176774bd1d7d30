"""Loss scaling: the state, and the one transition that every framework runs."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from mpcore.errors import LossScaleError
from mpcore.scaling.loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LossScale",
    "LossScaleState",
    "advance",
    "check_abort",
    "initial_state",
    "inverse",
    "narrow",
    "transition",
]

_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


class LossScaleState(NamedTuple):
    """State of loss scaling: numbers on the host, 0-d arrays inside a traced step.

    Attributes:
        scale: factor the loss is multiplied by, dimensionless; float32, or float64 where the
            rule says so.
        good_steps: finite steps since the scale last changed or a step was skipped; counts
            from ``-growth_warmup``; int32, as all that follow.
        skipped_steps: steps skipped since the start.
        bad_steps: skipped steps that count towards ``hysteresis``.
        skips_in_a_row: skipped steps since the last finite one; moves only under ``max_skips``.
        steps: steps since the start.
        last_change: value of ``steps`` at the last change of the scale, -1 before.
        overflows: skipped steps since then; moves only under ``overflow_ratio``, like the two
            above.
    """

    scale: Any
    good_steps: Any = 0
    skipped_steps: Any = 0
    bad_steps: Any = 0
    skips_in_a_row: Any = 0
    steps: Any = 0
    last_change: Any = -1
    overflows: Any = 0


def initial_state(rule: LossScale) -> LossScaleState:
    """Return the state before the first step."""
    return LossScaleState(narrow(rule, rule.init_scale), good_steps=-rule.quirks.growth_warmup)


def transition(
    rule: LossScale,
    state: Any,
    finite: Any,
    where: Callable[[Any, Any, Any], Any],
    narrow: Callable[[Any], Any],
    stepped: Any = None,
) -> tuple[Any, ...]:
    """Return the state for the next step; branch-free, so that every framework can trace it.

    The plain machine, which all others vary::

        good_steps += 1 if finite else reset to 0
        if not finite:                       scale = max(scale * backoff_factor, min_scale)
        if good_steps == growth_interval:    scale = min(scale * growth_factor, max_scale)
                                             good_steps = 0

    Runs verbatim on Python numbers and numpy, in torch (eager and compiled), in
    ``tf.function``, and in MindSpore (eager, ``ms.jit`` and graph mode). An ``if`` asks the rule
    alone, whose values are baked into a traced graph; what depends on the step is a ``where``.

    Args:
        rule: constants of the machine; Python values.
        state: the fields of LossScaleState that this step was run with; left untouched.
        finite: 0-d bool: no inf or NaN in any gradient of any rank.
        where: the framework's ``where(condition, x, y)``.
        narrow: rounds a product to the format of the scale; on float32 tensors it returns
            what it is given.
        stepped: 0-d bool: the optimizer moved, where that is another question than ``finite``:
            a step whose bad micro-batch was dropped moves, and backs off.

    Returns:
        The next state. A plain tuple, since MindSpore's graph compiler leaves a NamedTuple to
        the interpreter and loses its dtype. Fields that the rule does not need stay the
        same objects.

    Examples:
        >>> rule = LossScale(init_scale=8.0, growth_interval=2)
        >>> state = transition(rule, (8.0, 1, 0, 0, 0, 0, -1, 0), True, _pick, float)
        >>> state[:3]
        (16.0, 0, 0)
    """
    scale, good, skipped, bad, in_a_row, steps, last, overflows = state
    skipped = where(finite if stepped is None else stepped, skipped, skipped + 1)
    if rule.quirks.max_skips is not None:
        in_a_row = where(finite, in_a_row * 0, in_a_row + 1)
    if rule.kind != "dynamic":
        return scale, good, skipped, bad, in_a_row, steps, last, overflows

    # A constant is made from what it stands beside (0 as good * 0): so it has that one's dtype,
    # shape and device. numpy 1's `where` makes int64 and float64 of a bare number's company.
    good = where(finite, good + 1, good * 0 - rule.quirks.growth_warmup)
    due = good >= rule.growth_interval
    up = _raised(rule, scale, where, narrow)
    down = _lowered(rule, scale, where, narrow)
    waits = (bad, steps, last, overflows)
    if rule.quirks.overflow_ratio is not None or rule.quirks.hysteresis > 1:
        down, waits = _delayed(rule, scale, down, waits, finite, due, where)
    scale = where(finite, where(due, up, scale), down)
    good = where(due, good * 0, good)
    bad, steps, last, overflows = waits
    return scale, good, skipped, bad, in_a_row, steps, last, overflows


def _raised(rule: LossScale, scale: Any, where: Any, narrow: Any) -> Any:
    """Return the scale after a growth."""
    grown = narrow(scale * rule.growth_factor)
    if rule.quirks.nonfinite_growth == "keep":
        grown = where(grown <= _FLOAT32_MAX, grown, scale)
    elif rule.quirks.nonfinite_growth == "clamp":
        grown = where(grown <= _FLOAT32_MAX, grown, scale * 0 + _FLOAT32_MAX)
    return where(grown <= rule.max_scale, grown, scale * 0 + rule.max_scale)


def _lowered(rule: LossScale, scale: Any, where: Any, narrow: Any) -> Any:
    """Return the scale after a back-off; unchanged where that ends the run."""
    if rule.quirks.backoff_op == "mul":
        shrunk = narrow(scale * rule.backoff_factor)
    elif rule.quirks.backoff_op == "div":
        shrunk = narrow(scale / rule.backoff_factor)
    else:
        shrunk = narrow(scale * rule.reciprocal)
    down = where(shrunk >= rule.min_scale, shrunk, scale * 0 + rule.min_scale)
    if rule.quirks.abort_below is not None:
        down = where(down > rule.quirks.abort_below, down, scale)
    return down


def _delayed(
    rule: LossScale, scale: Any, down: Any, waits: Any, finite: Any, due: Any, where: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Return (the scale after an overflow, counts) of a machine that does not back off at once.

    Args:
        rule: with ``overflow_ratio``, or a ``hysteresis`` above 1.
        scale: scale of this step.
        down: what a back-off makes of it.
        waits: ``(bad_steps, steps, last_change, overflows)``.
        finite: 0-d bool.
        due: 0-d bool: the scale grows after this step.
        where: the framework's.
    """
    bad, steps, last, overflows = waits
    quirks = rule.quirks
    if quirks.overflow_ratio is not None:
        overflows = where(finite, overflows, overflows + 1)
        fire = overflows / (steps - last) >= quirks.overflow_ratio
        down = where(fire, down, scale)
        overflows = where(finite, overflows, where(fire, overflows * 0, overflows))
        last = where(finite, last, where(fire, steps, last))
    else:
        bad = where(finite, bad, bad + 1)
        fire = bad >= quirks.hysteresis
        down = where(fire, down, scale)
        if "backoff" in quirks.hysteresis_reset:
            bad = where(finite, bad, where(fire, bad * 0, bad))
    if quirks.hysteresis > 1 and "growth" in quirks.hysteresis_reset:
        bad = where(due, bad * 0, bad)
    if quirks.hysteresis > 1 and "good" in quirks.hysteresis_reset:
        bad = where(finite, bad * 0, bad)
    if quirks.overflow_ratio is not None:
        last = where(due, steps, last)
        steps = steps + 1
    return down, (bad, steps, last, overflows)


def _float32(value: float) -> float:
    """Return a number rounded to float32; inf beyond its range. A tenth of numpy's time."""
    return ctypes.c_float(value).value


def narrow(rule: LossScale, value: float) -> float:
    """Return a number in the format that the rule keeps its scale in."""
    return value if rule.quirks.state_dtype == "float64" else _float32(value)


def inverse(scale: float) -> float:
    """Return what gradients are multiplied by: float32 of 1 / scale; inf for a scale of 0.

    Source: one division in double, one rounding, as torch.amp.GradScaler, torch 2.13.0.
    """
    return _float32(1.0 / scale) if scale else math.inf


def _pick(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


def advance(rule: LossScale, state: LossScaleState, finite: bool) -> LossScaleState:
    """Return the next state on the host: ``transition`` on numbers, in the rule's formats.

    Raises:
        LossScaleError: the rule ends the run here; see ``check_abort``.
    """
    moved = transition(rule, state, finite, _pick, lambda x: narrow(rule, x))
    check_abort(rule, state, LossScaleState(*moved))
    return LossScaleState(*moved)


def check_abort(rule: LossScale, before: LossScaleState, after: LossScaleState) -> None:
    """Raise where the rule ends a run: at its floor, below a limit, after too many skips.

    Called on the host after the step; a traced step cannot raise.

    Raises:
        LossScaleError: with the reason and the scale.
    """
    if after.skipped_steps == before.skipped_steps:
        return
    quirks = rule.quirks
    if quirks.overflow_ratio is not None:
        fires = after.overflows == 0
    else:
        fires = quirks.hysteresis <= 1 or after.bad_steps >= quirks.hysteresis
    if quirks.raises_at_min and fires and before.scale == rule.min_scale:
        msg = f"overflow at the smallest loss scale {before.scale:g}: the run cannot go on"
        raise LossScaleError(msg)
    if quirks.abort_below is not None and fires:
        free = rule.changed(abort_below=None)
        lowered = _lowered(free, before.scale, _pick, lambda x: narrow(rule, x))
        if lowered <= quirks.abort_below:
            msg = f"the loss scale would fall to {lowered:g}: the run cannot go on"
            raise LossScaleError(msg)
    if quirks.max_skips is not None and after.skips_in_a_row > quirks.max_skips:
        msg = f"more than {quirks.max_skips} steps in a row overflowed, at scale {after.scale:g}"
        raise LossScaleError(msg)
