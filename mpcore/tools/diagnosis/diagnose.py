"""``diagnose``: the latest step of a model in use, run again in place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError
from mpcore.numerics.dtypes import FORMATS
from mpcore.step.transaction import Latest, StepCall
from mpcore.tools.diagnosis.locate import passes
from mpcore.tools.diagnosis.run import case_of, examine, look
from mpcore.tools.inspection import Inspection, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mpcore.amp.amp import Amp
    from mpcore.policy.policy import Policy
    from mpcore.step.result import StepResult
    from mpcore.tools.diagnosis.record import PostMortem

__all__ = ["diagnose", "parts_of"]

_BY_HAND = "mp.diagnose(amp, result, loss_fn, *batch)"


def diagnose(
    amp: Amp,
    result: StepResult | None = None,
    loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    *batch: Any,
) -> PostMortem:
    """Find out why the latest step was skipped: where it overflowed, and what fixes it.

    The batch is run again, some ten times: under this policy, in float32, and under each
    fix that is tried. Nothing of the model, the optimizers or the loss scale changes.
    ``step`` keeps the arguments of its latest call for that, until the next one begins.

    Args:
        amp: what ``prepare`` returned.
        result: what the latest ``step`` returned; None for the latest step, whatever it
            returned or raised.
        loss_fn: as for ``step``; with it, the batch is what follows, not that of ``step``:
            for steps that were taken elsewhere (torch's ``amp.apply``, Keras' ``fit``,
            MindSpore's ``Model.train``).
        batch: what ``loss_fn`` is called with.

    Raises:
        BackendError: the step was a real one, or not the latest; the batch is not known, or
            does not overflow when it is run again; the backend cannot run it again.
    """
    _check_result(amp, result)
    latest = _latest(amp, result, loss_fn, batch)
    if result is None and loss_fn is None and amp.last is not None:
        last = amp.last
        result = last if last.step == latest.step else None
        _check_skipped(result)
    case = case_of(amp._trained_model, amp, result)
    if not case.step:
        case = replace(case, step=latest.step)
    parts = list(parts_of(latest))
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


def parts_of(latest: Latest) -> Iterator[tuple[Any, ...]]:
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
