"""One batch through a network, forward and backward as an eager step does, and what it does told.

Everything is put back; what happens is heard by the ``Tap`` of ``mpcore_mindspore.tap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor

from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low, round_to
from mpcore.tools.inspection.recorder import (
    BACKWARD,
    FORWARD,
    Outcome,
)
from mpcore.tools.inspection.tensor_summary import summarize
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import dtype_name, parameter_paths
from mpcore_mindspore.snapshot import left_alone
from mpcore_mindspore.tap import OPS, Tap, is_float, numbers_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.amp.amp import Amp
    from mpcore.tools.inspection.recorder import Calls
    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["OPS", "record"]


class _Wanted(NamedTuple):
    """One loss function, and what it is differentiated for.

    Attributes:
        params: Parameters of the network.
        names: their paths.
        rounds: whether the step rounds each gradient to a simulated dtype.
    """

    function: Callable[..., Any]
    params: tuple[Any, ...]
    names: tuple[str, ...]
    rounds: tuple[bool, ...]


def record(
    model: Any,
    amp: Amp | None,
    batch: tuple[Any, ...],
    loss_fn: Any,
    scale: float,
    calls: Calls[Any, Any],
) -> Outcome:
    """Run one batch and tell what happens; see ``mpcore.tools.inspection.recorder.Recorder``.

    Raises:
        BackendError: in GRAPH_MODE, which leaves nothing to hear.
    """
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        raise BackendError(_inspected_in_graph_mode if calls.values else _observed_in_graph_mode)
    if amp is not None and amp.simulated and is_low(amp.policy.compute):
        calls.simulated = amp.policy.compute
    wanted = _wanted(model, amp, loss_fn, values=calls.values)
    batch = tuple(Tensor(_as_array(x)) if isinstance(x, np.ndarray) else x for x in batch)
    tap = Tap(model, amp, calls)
    region: Any = guarded() if amp is None else amp.autocast()  # type: ignore[attr-defined]
    total, sums = np.float32(0), dict[str, tuple[Any, bool]]()
    with left_alone(model, amp), region, tap.open():
        seen = {f"batch[{i}]": tap.seen(x) for i, x in enumerate(batch) if isinstance(x, Tensor)}
        for one in wanted:
            loss, found = _differentiated(one, batch, scale, calls)
            total = total + np.float32(loss.asnumpy().reshape(()))
            for name, grad, rounds in found:  # several losses may move one Parameter
                before = sums.get(name)
                sums[name] = (grad if before is None else before[0] + grad), rounds
    grads = {name: _gradient(grad, rounds=rounds) for name, (grad, rounds) in sums.items()}
    return Outcome(float(total), seen, grads, _how(calls))


_observed_in_graph_mode = (
    "`observe` must run in PYNATIVE_MODE, got GRAPH_MODE, where no Cell is called: "
    "the casts are the same there, so observe before ms.set_context(mode=ms.GRAPH_MODE)"
)
_inspected_in_graph_mode = (
    "a network must be inspected in PYNATIVE_MODE, got GRAPH_MODE, where no Cell is "
    "called: the casts are the same there, so call "
    "ms.set_context(mode=ms.PYNATIVE_MODE) around it"
)


def _how(calls: Calls[Any, Any]) -> str:
    simulated = calls.simulated
    if calls.values:
        how = "one batch in eager mode; gradients by hooks on tensors, ops as calls of primitives"
        more = f"float32 that it holds exactly is called {simulated}"
    else:
        device = str(ms.get_context("device_target"))
        how = f"one batch on {device}, Cells and primitives in eager mode"
        more = (
            f"float32 operands that it holds exactly count as {simulated}, of several products in "
            "a layer the first, and gradients are not judged"
        )
    return f"{how}; {simulated} is simulated: {more}" if simulated else how


def _wanted(model: Any, amp: Any, loss_fn: Any, *, values: bool) -> list[_Wanted]:
    named = loss_fn if isinstance(loss_fn, dict) else {"": loss_fn or _mean_loss(model)}
    if amp is None or not values:
        paths = parameter_paths(model)
        params = tuple(p for p in model.get_parameters() if p.requires_grad)
        names = tuple(paths[id(p)] for p in params)
        rounds = (False,) * len(params)
        return [_Wanted(function, params, names, rounds) for function in named.values()]
    amp._bindings.check_prepared()
    bound = amp._bindings.optimizers
    if isinstance(loss_fn, dict):
        each = [(function, [bound[name]]) for name, function in loss_fn.items()]
    else:
        each = [(named[""], list(bound.values()))]
    return [
        _Wanted(
            function,
            tuple(param for one in own for param in one.trained),
            tuple(name for one in own for name in one.names),
            tuple(rounds for one in own for rounds in one.rounds_grad),
        )
        for function, own in each
    ]


def _as_array(value: Any) -> Any:
    """Return a numpy array, float64 as float32."""
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _mean_loss(model: Any) -> Callable[..., Any]:
    """Return a loss that is the mean of the model's floats."""

    def loss(*batch: Any) -> Any:
        floats = [x.astype(ms.float32).mean() for x in tensors_in(model(*batch)) if is_float(x)]
        return sum(floats[1:], floats[0])

    return loss


def _differentiated(
    wanted: _Wanted, batch: tuple[Any, ...], scale: float, calls: Calls[Any, Any]
) -> tuple[Any, list[tuple[str, Any, bool]]]:
    """Run one loss forward and backward.

    Returns:
        The loss in float32, and (path, gradient, whether the step rounds it) of each Parameter.
    """

    def scaled(*given: Any) -> Any:
        with calls.running(FORWARD):
            loss = wanted.function(*given)
        if not isinstance(loss, Tensor) or loss.size != 1:
            msg = f"`loss_fn` must return one number, got {loss!r:.80}"
            raise BackendError(msg)
        loss = loss.astype(ms.float32)
        return loss * scale, loss

    if not calls.request.backward:
        return scaled(*batch)[1], []
    function = ms.value_and_grad(scaled, None, ParameterTuple(wanted.params), has_aux=True)
    with calls.running(BACKWARD):
        (_, loss), grads = function(*batch)
    if not calls.values:
        return loss, []
    return loss, list(zip(wanted.names, grads, wanted.rounds, strict=True))


def _gradient(grad: Any, *, rounds: bool) -> TensorSummary:
    """Return the gradient of a Parameter, as the step would have it."""
    if rounds:  # the step rounds to bfloat16, whatever holds the numbers
        return summarize(round_to(numbers_of(grad), "bfloat16"), "bfloat16")
    return summarize(numbers_of(grad), dtype_name(grad.dtype))
