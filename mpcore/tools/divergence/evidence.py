"""What is known of one side of a comparison: a few steps of it, looked at closely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.backend import find_backend
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.errors import BackendError
from mpcore.numerics.dtypes import FORMATS
from mpcore.tools.inspection import Inspection, Request, inspect, summarize
from mpcore.tools.inspection.observe import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from mpcore.amp.amp import Amp
    from mpcore.backend.driver import Driver
    from mpcore.step.result import StepResult
    from mpcore.tools.inspection import TensorSummary

__all__ = ["STEPS", "Evidence", "collect", "perturbed"]

STEPS = 3
"""Steps by which an optimizer's constants show: momentum from the second on."""

_SKIPS = 12
"""Steps that may be skipped besides: a loss scale of 2**16 halves itself so often to 16."""

_SMALL = 2**16  # values of a batch's tensor that is kept whole: labels are


@dataclass(frozen=True)
class Evidence:
    """One side: a model with its optimizer and policy, on one batch.

    Attributes:
        backend: that it ran in.
        policy: text of the policy.
        inspection: of the first step.
        reseeded: the same with another state of random numbers; None if it was not looked at.
        moved: the same with weights moved by one unit in the last place of the compute format:
            how far noise goes.
        weights: before the first step and after each, by layer, float32; the layers are the same.
        grads: true gradients of each step, by layer; an empty list for a skipped step.
        steps: ``StepResult.to_dict()`` of each step, skipped ones among them.
        plan: ``Plan.to_dict()``.
        observed: ``Observation.to_dict()``; empty where the backend cannot be observed.
        optimizer: the optimizer's constants, as somebody wrote them; ``""`` if nobody did.
        trajectory: of a whole run: loss scale of each step, and whether it moved the weights.
    """

    backend: str
    policy: str
    inspection: Inspection
    reseeded: Inspection | None = None
    moved: tuple[Inspection, ...] = ()
    weights: tuple[list[LayerWeights], ...] = ()
    grads: tuple[list[LayerWeights], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = ""
    trajectory: tuple[tuple[float, bool], ...] = ()

    @property
    def optimizer_steps(self) -> list[int]:
        """Numbers of the steps that moved the weights."""
        return [number for number, grads in enumerate(self.grads) if grads]

    @property
    def compute(self) -> str:
        """Narrowest compute dtype of the plan."""
        found = {entry["compute"] for entry in self.plan.get("layers", ())}
        found |= {entry["compute"] for entry in self.plan.get("ops", ())}
        calls = (call for call in self.inspection.calls if call.category != "op")
        found |= {call.outputs[0].dtype for call in calls if call.outputs}
        return next((name for name in ("bfloat16", "float16") if name in found), "float32")


def collect(
    driver: Driver[Any],
    model: Any,
    amp: Amp,
    loss_fn: Any,
    batch: Sequence[Any],
    *,
    request: Request | None = None,
    moved: int = 2,
    steps: int = STEPS,
    seed: int = 0,
    optimizer: str = "",
    step: Callable[..., StepResult] | None = None,
) -> Evidence:
    """Inspect one batch and run a few steps on it; the model is used up.

    Cost: an inspection (about two steps) for the first look, for the other random state, for
    each of ``moved`` and for the dtypes, then the steps themselves; and, while it lasts, the
    weights and gradients of all steps on the host.

    Args:
        driver: of the model's backend.
        model: a prepared model that nobody needs any more: it makes ``steps`` steps.
        amp: what ``prepare`` returned for it.
        loss_fn: as for ``amp.step``.
        batch: what ``loss_fn`` is called with.
        request: what to look at, and how closely.
        moved: inspections with moved weights, >= 0; without any, only rounding is allowed for.
        steps: real steps to make, >= 0; fewer than two do not show momentum. With 0 there is
            the first look alone, and the model stays what it is: enough for a ``closer``.
        seed: of random numbers, the same for every side.
        optimizer: its constants in words, for the report.
        step: runs a step as ``step(*batch, keep_grads=True)``, such as a compiled one;
            ``amp.step`` if None.
    """
    request, run = request or Request(), step or partial(amp.step, loss_fn)

    def look(numbers: int) -> Inspection:
        driver.seed(numbers)
        return inspect(model, amp, loss_fn, *batch, request=request)

    first = look(seed)
    before = driver.weights(model, amp)
    found = Evidence(
        find_backend(model).name,
        str(amp.policy),
        replace(first, batch=_whole(first.batch, batch)),
        weights=(before,),
        plan=amp.plan.to_dict(),
        optimizer=optimizer,
    )
    if not steps:
        return found
    other, observed = look(seed + 1), _observed(amp, loss_fn, batch)
    unit, noise = FORMATS[found.compute].spacing, []
    for number in range(moved):
        driver.load_weights(model, perturbed(before, unit, seed + number), amp)
        noise.append(look(seed))
    if moved:
        driver.load_weights(model, before, amp)
    driver.seed(seed)
    weights, results = [before], []
    grads: list[list[LayerWeights]] = []
    for _ in range(steps + _SKIPS):
        if sum(map(bool, grads)) >= steps:
            break
        result = run(*batch, keep_grads=True)
        grads.append(driver.gradients(model, result.grads) if result.stepped else [])
        weights.append(driver.weights(model, amp))
        results.append(result.to_dict())
    return replace(
        found,
        reseeded=other,
        observed=observed,
        moved=tuple(noise),
        weights=tuple(weights),
        grads=tuple(grads),
        steps=tuple(results),
    )


def _observed(amp: Amp, loss_fn: Any, batch: Sequence[Any]) -> dict[str, Any]:
    try:
        return observe(amp, *batch, loss_fn=loss_fn).to_dict()
    except BackendError as exc:
        return {"how": f"not observed: {exc}"}


def _whole(seen: tuple[TensorSummary, ...], batch: Sequence[Any]) -> tuple[TensorSummary, ...]:
    """Return the summaries of a batch, small tensors with their values."""
    arrays = [np.asarray(x) for x in batch if hasattr(x, "shape")]
    if len(arrays) != len(seen):
        return seen
    return tuple(map(_kept, seen, arrays))


def _kept(seen: TensorSummary, array: npt.NDArray[Any]) -> TensorSummary:
    """Return the summary with the values, in the layout that it was made in."""
    if array.size > _SMALL:
        return seen
    ways = [array] if array.ndim < 3 else [array, np.moveaxis(array, -1, 1)]
    for way in ways:
        found = summarize(way, seen.dtype, keep=True)
        if way.shape == seen.shape and (way is array or found.digest == seen.digest):
            return found
    return seen


def perturbed(weights: Sequence[LayerWeights], unit: float, seed: int) -> list[LayerWeights]:
    """Return weights moved up or down by one unit in the last place, at random.

    Args:
        weights: float32; arrays of zeros stay what they are.
        unit: spacing of the format at 1.0, such as 2**-7 for bfloat16.
        seed: of the signs.
    """
    rng = np.random.default_rng(seed)

    def move(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        signs = rng.choice(np.array([-1, 1], np.float32), array.shape)
        exponents = np.exp2(np.floor(np.log2(np.maximum(np.abs(array), 1e-30))))
        return np.asarray(array + signs * np.float32(unit) * exponents, np.float32)

    return [
        LayerWeights(
            w.path, w.category, {n: move(a) if a.any() else a for n, a in w.arrays.items()}
        )
        for w in weights
    ]
