"""``Amp.diagnose``: the latest step of a model in use, run again in place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore.dtypes import FORMATS
from mpcore.errors import BackendError
from mpcore.inspection import Inspection, Request
from mpcore.postmortem.locate import passes
from mpcore.postmortem.run import case_of, examine, look
from mpcore.transaction import Latest, StepCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.amp import Amp
    from mpcore.policy import Policy
    from mpcore.postmortem.record import PostMortem
    from mpcore.step_result import StepResult

__all__ = ["diagnose"]

_BY_HAND = "amp.diagnose(result, loss_fn, *batch)"


def diagnose(
    amp: Amp, result: StepResult | None, loss_fn: Any, batch: tuple[Any, ...]
) -> PostMortem:
    """Return why a step was skipped; see ``mpcore.amp.Amp.diagnose``."""
    _check_result(amp, result)
    latest = _latest(amp, result, loss_fn, batch)
    if result is None and loss_fn is None and amp.last is not None:
        last = amp.last
        result = last if last.step == latest.step else None
        _check_skipped(result)
    case = case_of(amp._trained_model, amp, result)
    if not case.step:
        case = replace(case, step=latest.step)
    parts = list(_parts(latest))
    given = parts[0]
    for part in parts if len(parts) > 1 else []:
        seen = _run(amp, latest, part, None, Request(scale=case.scale))
        if not passes(seen, case.names):
            given = part
            break

    def again(policy: Policy | None, request: Request) -> Inspection:
        return _run(amp, latest, given, policy, request)

    return examine(again, case)


def _run(
    amp: Amp, latest: Latest, batch: tuple[Any, ...], policy: Policy | None, request: Request
) -> Inspection:
    model = amp._trained_model
    with amp._replayed(latest.random):
        if policy is None:
            return look(model, amp, latest.loss_fn, batch, request)
        with amp._under(policy) as wrapped:
            return look(model, None, wrapped(latest.loss_fn), batch, request)


def _check_result(amp: Amp, result: StepResult | None) -> None:
    if result is None:
        return
    _check_skipped(result)
    if result.step and result.step != amp._steps_done:
        msg = (
            f"`result` must be that of the latest step, {amp._steps_done}, got that of step "
            f"{result.step}: weights and scale have moved on since; diagnose a step before the "
            "next one begins"
        )
        raise BackendError(msg)


def _check_skipped(result: StepResult | None) -> None:
    # A real step whose norm is beyond float32 was clipped to zero: that is worth a look.
    if result is not None and result.stepped and _finite_norm(result):
        msg = f"`result` must be of a skipped step, step {result.step} was a real one"
        raise BackendError(msg)


def _finite_norm(result: StepResult) -> bool:
    try:
        return result.grad_norm <= FORMATS["float32"].max
    except BackendError:  # torch: the gradients have changed since, so nobody was clipped to zero
        return True


def _latest(amp: Amp, result: StepResult | None, loss_fn: Any, batch: tuple[Any, ...]) -> Latest:
    done = amp._steps_done
    if loss_fn is not None:
        step = done if result is None else result.step
        return Latest(loss_fn, batch, StepCall(optimizers=tuple(amp.optimizers)), None, step)
    # One that ended the run by an error was never counted.
    wanted = (done, done + 1) if result is None else (result.step,)
    latest = amp._latest
    if latest is None or latest.step not in wanted:
        msg = (
            "the batch of this step is not known: it came through a loop of its own (amp.apply, "
            f"fit, Model.train), or no step was taken; give it by hand: {_BY_HAND}"
        )
        raise BackendError(msg)
    return latest


def _parts(latest: Latest) -> Iterator[tuple[Any, ...]]:
    """Yield the micro-batches of a step, cut along the first axis as the step cuts them."""
    count = latest.call.micro_batches
    for index in range(count):
        yield tuple(_cut(x, index, count) for x in latest.batch) if count > 1 else latest.batch


def _cut(value: Any, index: int, count: int) -> Any:
    shape: Any = getattr(value, "shape", ())
    if not len(shape):
        return value
    rows = int(shape[0]) // count
    return value[index * rows : (index + 1) * rows]
