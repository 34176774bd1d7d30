"""``inspect``: one batch forward and backward, and what every layer did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore._lib.generators import generators_kept
from mpcore.backend.backend import find_backend
from mpcore.tools.inspection.record import Inspection, Request
from mpcore.tools.inspection.recorder import RECORDER
from mpcore.tools.inspection.summaries import Summaries

if TYPE_CHECKING:
    from mpcore.amp.amp import Amp

__all__ = ["inspect"]

_RECORDER = replace(RECORDER, without="cannot be inspected")


def inspect(
    model: Any,
    amp: Amp | None,
    loss_fn: Any,
    *batch: Any,
    request: Request | None = None,
) -> Inspection:
    """Run one batch forward and backward, change nothing, and return what every layer did.

    Args:
        model: the model.
        amp: what ``mpcore.prepare`` returned for it; None for a model as it is.
        loss_fn: as for ``amp.step``.
        batch: what ``loss_fn`` is called with.
        request: what to look at; summaries of every layer if None.

    Raises:
        BackendError: the backend has no recorder, or the model cannot be inspected.
    """
    backend, request = find_backend(model), request or Request()
    recorder = _RECORDER.of(backend)
    calls = Summaries(request, recorder.OPS)
    scale = request.scale or (1.0 if amp is None else float(amp.scale))
    with generators_kept():
        outcome = recorder.record(model, amp, batch, loss_fn, scale, calls)
    return Inspection(
        outcome.loss,
        scale,
        calls.layer_calls(),
        tuple(tensor.summary() for tensor in outcome.batch.values()),
        outcome.grads,
        outcome.how,
    )
