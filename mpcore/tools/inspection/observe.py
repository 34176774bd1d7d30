"""``observe``: one batch forward and backward, the dtypes that really ran, against the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from mpcore._lib.generators import generators_kept
from mpcore.amp.amp import Amp
from mpcore.backend.backend import find_backend, load_backend
from mpcore.backend.parts import Part
from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.policy.rule import Rule
from mpcore.tools.inspection.dtypes import Dtypes
from mpcore.tools.inspection.observation import Observation, judge
from mpcore.tools.inspection.recorder import RECORDER
from mpcore.tools.inspection.side_by_side import op_system

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.backend.backend import Backend
    from mpcore.policy.plan import Plan
    from mpcore.tools.inspection.recorder import Outcome
    from mpcore.tools.inspection.trace import Trace

__all__ = [
    "DRY_RUN",
    "DryRun",
    "Observation",
    "dry_run",
    "judge",
    "observe",
    "plan_of",
    "trace_dtypes",
]


class DryRun(Protocol):
    """A run of a model without values."""

    def dry_run(
        self, model: Any, plan: Plan, batch: tuple[Any, ...], device: str, calls: Dtypes, /
    ) -> Outcome:
        """Tell ``calls`` what every layer and op would run in under ``plan`` on ``device``."""
        ...


DRY_RUN: Part[DryRun] = Part(
    "dry_run",
    "cannot tell what ops would run in: it has no tensors without values",
    "prepare a model and use mpcore.observe",
)


def observe(
    model_or_amp: Any,
    *batch: Any,
    loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    policy: Policy | str | None = None,
) -> Observation:
    """Run one batch forward and backward and return what ran in which dtype, beside the plan.

    Nothing is left changed: weights, gradients, buffers, random generators, optimizers and
    their step count are what they were. tf.keras traces a graph, in which nothing runs at all.

    Args:
        model_or_amp: what ``prepare`` returned; or a model, which runs as it is.
        batch: the framework's tensors, or numpy arrays, as for ``Amp.step``.
        loss_fn: called as ``loss_fn(*batch)``, as for ``Amp.step``; without it the model is
            called on ``batch`` and the mean of its float outputs stands for the loss.
        policy: for a model: what to compare it with; float32 if None.

    Raises:
        BackendError: the backend cannot be observed, or the loss is none; gradients wait for
            ``apply``.

    Example::

        amp = mp.prepare(model, optimizer, "mixed_bfloat16")
        print(mp.observe(amp, x, y, loss_fn=loss_fn))
    """
    amp = model_or_amp if isinstance(model_or_amp, Amp) else None
    if amp is not None and policy is not None:
        msg = "`policy` must be left out for a prepared model: it has one, amp.policy"
        raise BackendError(msg)
    if not batch:
        msg = "`batch` must hold at least one tensor, got none"
        raise BackendError(msg)
    model: Any = model_or_amp if amp is None else getattr(amp, "model", None)
    backend = find_backend(model) if amp is None else load_backend(amp.backend.name)
    plan = plan_of(model, policy or "float32") if amp is None else amp.plan
    device = backend.capabilities(model).device
    with generators_kept():
        trace = trace_dtypes(backend, model, amp, batch, loss_fn)
    return judge(plan, trace, op_system(backend.name, device))


def trace_dtypes(
    backend: Backend, model: Any, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any
) -> Trace:
    """Run one batch forward and backward, and return the dtypes that ran; changes nothing.

    Raises:
        BackendError: the backend cannot be observed, or the loss is none.
    """
    recorder = RECORDER.of(backend)
    calls = Dtypes(recorder.OPS)
    return calls.trace(recorder.record(model, amp, batch, loss_fn, 1.0, calls))


def plan_of(model: Any, policy: Policy | str, device: str = "") -> Plan:
    """Return what every layer of ``model`` would do under ``policy``.

    Args:
        model: the model.
        policy: a policy, its name, or its text.
        device: for rules about it; the one that the model is on if empty.
    """
    backend = find_backend(model)
    device = device or backend.capabilities(model).device
    return resolve_plan(Policy.of(policy), backend.layers(model), device)


def dry_run(model: Any, policy: Policy | str, *batch: Any, device: str = "") -> Observation:
    """Return what every layer and op would run in under ``policy``, on a device at hand or not.

    The model is left alone. In torch a copy without values runs, in tf.keras the model is traced:
    nothing is computed. MindSpore runs one batch, on the device at hand alone.

    Args:
        model: a torch.nn.Module, keras.Model or mindspore.nn.Cell, not prepared.
        policy: a policy, its name, or its text.
        batch: what the model is called with; its values do not matter.
        device: such as ``"cuda"``; that of the model if empty.

    Where a product would get two dtypes, the step would raise: ``Observation.raises`` says where,
    and under which policy it runs, which was tried in the same way.

    Raises:
        BackendError: the backend cannot do that, or not for that device.
    """
    backend = find_backend(model)
    runner = DRY_RUN.of(backend)
    device = device or backend.capabilities(model).device
    plan = plan_of(model, policy, device)

    def foretold(plan: Plan) -> Trace:
        calls = Dtypes(RECORDER.of(backend).OPS, backward=False)
        return calls.trace(runner.dry_run(model, plan, batch, device, calls))

    trace = foretold(plan)
    found = judge(plan, trace, op_system(backend.name, device))
    if not trace.clashes:
        return found

    def clashes(policy: Policy) -> bool:
        try:
            return bool(foretold(plan_of(model, policy, device)).clashes)
        except BackendError:  # it cannot be foretold there: not known to run
            return True

    runs = [policy for policy in _others(plan.policy, plan) if not clashes(policy)]
    way = f"it runs under {str(runs[0])!r}" if runs else "no policy was found that runs it"
    return replace(found, raises=tuple(f"{clash}; {way}" for clash in trace.clashes))


def _others(policy: Policy, plan: Plan) -> list[Policy]:
    """Return policies with the same compute dtype under which a product may get one dtype."""
    found = []
    if policy.by == "layer" and any(entry.category == "softmax" for entry in plan.layers):
        first = Rule("full", "layer", "softmax", "lower")  # under the user's rules
        found.append(replace(policy, rules=(first, *policy.rules)))
    if policy.by != "op" and is_low(policy.compute):
        found.append(Policy.named(f"autocast_{policy.compute}"))
    return found
