"""One step, layer by layer: what a worker looks at, and what the comparison makes of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from mpcore.backend.parts import EXACT
from mpcore.errors import ExperimentError
from mpcore.tools.divergence import Evidence, collect, save
from mpcore.tools.divergence.evidence import STEPS
from mpcore.tools.experiment.job import read_data
from mpcore.tools.experiment.prepared import Prepared, load_state, load_weights
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.inspection import Request, inspect
from mpcore.tools.report.layers import Distance as TensorDistance
from mpcore.tools.report.layers import Divergence, LayerDistance, Layers, RootCause

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.tools.divergence.distance import Distance
    from mpcore.tools.divergence.find import Verdict
    from mpcore.tools.divergence.first import First
    from mpcore.tools.divergence.root_cause import RootCause as FoundCause
    from mpcore.tools.divergence.rows import Row
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.job import Job
    from mpcore.tools.report.result import Run

__all__ = ["at_step", "exact", "layers_of", "one_step", "with_trajectory"]


def one_step(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Collect the evidence of one configuration, and leave it in the job's folder."""
    run, (x, y) = at_step(job, experiment)
    emit(phase="depth", step=0, of=1)
    look = frozenset(job.look)
    evidence = collect(
        run.driver,
        run.model,
        run.amp,
        run.loss_fn,
        run.batch(x, y),
        request=Request(keep=look, ops=look, layout=run.data.batch_layout),
        moved=0 if look else job.settings.noise_runs,
        steps=0 if look else STEPS,
        seed=job.settings.seed,
        optimizer=str(experiment.optimizer),
        step=run.run,
    )
    save(evidence, job.own("evidence"))
    emit(phase="depth", step=1, of=1)
    return {}


def at_step(job: Job, experiment: Experiment) -> tuple[Prepared, Any]:
    """Return the model as it is before the job's step, and the batch of that step."""
    data = read_data(job.data)
    run = Prepared(job, experiment, data, load_weights(job.initial))
    run.setup.set_rate(run.amp, max(job.step, 0))
    if job.step >= 0 and not load_state(job.before(job.step), run):
        msg = f"the reference left no state before step {job.step}"
        raise ExperimentError(msg)
    return run, _batch(job, data)


def exact(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Run the same step in float64, without a policy, to tell which of two is wrong."""
    data = read_data(job.data)
    widest = EXACT.of(job.backend)
    setup = Setup(experiment, job.configuration.name, data, seed=job.settings.seed)
    driver, model = setup.driver, setup.model()
    path = job.initial if job.step < 0 else job.before(job.step) / "weights.safetensors"
    weights = load_weights(path)
    driver.load_weights(model, weights)
    x, y = _batch(job, data)
    model, batch = widest.widened(model, setup.batch(x, y))
    loss_fn = setup.loss(model)
    emit(phase="float64", step=0, of=1)
    seen = inspect(model, None, loss_fn, *batch, request=Request(layout=data.batch_layout))
    grads = driver.gradients(model, widest.true_gradients(model, loss_fn(*batch)))
    found = Evidence(job.backend, "float64", seen, weights=(weights,), grads=(grads,))
    save(found, job.own("evidence"))
    emit(phase="float64", step=1, of=1)
    return {}


def _batch(job: Job, data: Any) -> Any:
    number = max(job.step, 0)
    batches = data.batches(number + 1, job.settings.batch, job.settings.seed)
    return next(islice(batches, number, None))


def with_trajectory(evidence: Evidence, run: Run) -> Evidence:
    """Return the evidence of one step, with what the loss scale of the free run did."""
    return replace(evidence, trajectory=tuple(zip(run.scale, run.stepped, strict=True)))


def layers_of(found: Verdict) -> Layers:
    """Return what was found of two sides of evidence, as a report tells it."""
    return Layers(
        found.verdict,
        rows=tuple(map(_row, found.rows)),
        first=_divergence(found.first) if found.first else None,
        root_causes=tuple(map(_root_cause, found.root_causes)),
        how=found.how,
        ops=tuple(map(_row, found.ops)),
    )


def _divergence(first: First) -> Divergence:
    sizes = float(first.relative), float(first.tolerance)
    return Divergence(first.phase, first.layer, first.own_layer, *sizes)


def _root_cause(cause: FoundCause) -> RootCause:
    place = cause.layer, cause.own_layer, cause.phase
    return RootCause(cause.kind, *place, cause.evidence, cause.fix, cause.confidence)


def _row(row: Row) -> LayerDistance:
    seen = map(_distance, (row.output, row.grad, row.param_grad, row.update))
    return LayerDistance(row.path, row.own_path, row.type, row.category, *seen)


def _distance(distance: Distance | None) -> TensorDistance | None:
    if distance is None:
        return None
    found = distance.found
    return TensorDistance(
        relative=float(found.relative),
        cosine=float(found.cosine),
        largest=float(found.largest),
        off=float(found.off),
        ulp=float(found.ulp),
        tolerance=float(distance.tolerance),
        beyond=bool(distance.beyond),
    )
