"""The runs of a comparison: free, moved by rounding, and in lock-step with the reference."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.machine import resident
from mpcore._lib.records import to_plain
from mpcore.backend.layout import as_tuple, examples
from mpcore.backend.parts import MODES
from mpcore.capabilities.load import moment, used_by_others
from mpcore.errors import BackendError
from mpcore.numerics.dtypes import FORMATS
from mpcore.policy.policy import Policy
from mpcore.tools.compare.judge import noise_of
from mpcore.tools.compare.step_sizes import STATISTICS, StepTensors, step_sizes
from mpcore.tools.compare.verdict import SAME_LOSS, free_difference
from mpcore.tools.diagnosis.diagnose import diagnose
from mpcore.tools.divergence.evidence import perturbed
from mpcore.tools.experiment.job import TESTED, plain, read_data
from mpcore.tools.experiment.prepared import (
    Prepared,
    load_state,
    load_weights,
    save_state,
    save_weights,
)
from mpcore.tools.inspection.observe import observe
from mpcore.tools.report.result import Measured, Observed, ObservedLayer, StepSeconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.step.result import StepResult
    from mpcore.tools.diagnosis.record import PostMortem
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.job import Job

__all__ = ["train"]

_MOVED = 2  # moved weights from which a single step is repeated, at most
_DIAGNOSED = 3  # skipped steps of a run that are looked at: each costs some ten batches


def train(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Train freely, then (in the reference) moved, then in lock-step; return the result."""
    data = read_data(job.data)
    initial = load_weights(job.initial)
    result = _free(job, Prepared(job, experiment, data, initial), emit)
    if job.reference and job.settings.noise_runs:
        result["noise_losses"], result["noise_accuracy"] = [], []
        for number in range(1, job.settings.noise_runs + 1):
            seed = job.settings.seed + number
            unit = FORMATS[Policy.parse(job.policy).compute].spacing
            moved = perturbed(initial, unit, seed)
            # Another seed too: what dropout draws is noise as well.
            run = Prepared(job, experiment, data, moved, seed)
            losses = []
            with _one_thread(job) if number > 1 else nullcontext():
                for index, (x, y) in enumerate(_batches(job, data)):
                    losses.append(run.step(x, y, index).loss)
                    emit(phase=f"noise {number}", step=index + 1, of=job.settings.steps)
            result["noise_losses"].append(losses)
            result["noise_accuracy"].append(_accuracy(run))
    if job.settings.lockstep_steps:
        run = Prepared(job, experiment, data, initial)
        first = result["records"][0]["loss"]
        result["draws"] = job.reference and _draws(job, experiment, data, initial, first)
        _lockstep(job, run, emit)
    return result


def _one_thread(job: Job) -> AbstractContextManager[None]:
    """Return a context of one thread, where a framework can change that while it runs."""
    modes = MODES.find(job.backend)
    return nullcontext() if modes is None else modes.one_thread()


def _batches(job: Job, data: Data) -> Any:
    return data.batches(job.settings.steps, job.settings.batch, job.settings.seed)


def _free(job: Job, run: Prepared, emit: Callable[..., None]) -> dict[str, Any]:
    records, seconds = [], []
    found: list[PostMortem | None] = []
    before = moment()
    with job.own("records.jsonl").open("w", encoding="utf-8", buffering=1) as stream:
        for index, (x, y) in enumerate(_batches(job, run.data)):
            start = time.perf_counter()
            step = run.step(x, y, index)
            loss = step.loss  # waits for the device
            seconds.append(time.perf_counter() - start)
            records.append({"step": index, "seconds": seconds[-1], **step.to_dict()})
            stream.write(json.dumps(records[-1]) + "\n")
            emit(phase="train", step=index + 1, of=job.settings.steps, loss=loss)
            if not step.stepped and len(found) < _DIAGNOSED:
                found.append(_diagnosed(run, step, index, run.batch(x, y), emit))
    others = used_by_others(before, moment())
    _, peak = resident()
    timed = np.array(seconds[min(job.settings.warmup, len(seconds) - 1) :])
    median, p90 = np.median(timed), np.quantile(timed, 0.9)
    measured = Measured(
        step_seconds=StepSeconds(float(median), float(p90), round(others, 3)),
        peak_memory_bytes=peak,
        test_accuracy=_accuracy(run),
        observed=_observed(run),
        postmortems=tuple(each for each in found if each),
    )
    return {
        "records": records,
        "measured": to_plain(measured),
        "array_bytes": sum(run.amp.array_bytes().values()),
    }


def _diagnosed(
    run: Prepared, step: StepResult, index: int, batch: tuple[Any, ...], emit: Any
) -> PostMortem | None:
    """Return why a step was skipped; None, and a warning, where that cannot be found out."""
    try:
        return replace(diagnose(run.amp, step, run.loss_fn, *batch), step=index)
    except BackendError as exc:
        emit(warning=f"step {index} was skipped, and cannot be diagnosed: {exc}")
        return None


def _accuracy(run: Prepared) -> float | None:
    x, y = run.data.x_test, run.data.y_test
    if not len(as_tuple(x)[0]) or not run.has_classes:
        return None
    count = min(len(y), TESTED)
    guess = run.setup.predict(run.model, run.amp, examples(x, slice(count))).argmax(-1)
    return float((guess == y[:count]).mean())


def _observed(run: Prepared) -> Observed | None:
    """Return what the layers really ran in, for the page's dtype map; None if nothing tells."""
    x, y = next(_batches(run.job, run.data))
    try:
        seen = observe(run.amp, *run.batch(x, y), loss_fn=run.loss_fn)
    except BackendError:
        return None  # a backend without an observer
    called = [(row, row.seen.calls[0]) for row in seen.layers if row.seen is not None]
    rows = tuple(
        ObservedLayer(row.path, tuple(call.kernels), tuple(call.went), tuple(row.faults))
        for row, call in called
    )
    judged = [row for row in seen.layers if row.judged]
    return Observed(len(judged), len(seen.differing), rows)


def _draws(
    job: Job, experiment: Experiment, data: Data, initial: list[LayerWeights], first: float | str
) -> bool:
    """Return whether the model draws random numbers: its ``first`` loss depends on the seed.

    Beyond rounding: the sums of some frameworks depend on where their arrays lie in memory.
    """
    x, y = next(_batches(job, data))
    loss = Prepared(job, experiment, data, initial, job.settings.seed + 1).step(x, y, 0).loss
    return free_difference([loss], [first])[0] > SAME_LOSS


def _lockstep(job: Job, run: Prepared, emit: Callable[..., None]) -> None:
    """Run single steps that all start from the reference's state; keep what each one did.

    The reference also runs each step from weights that are moved by one rounding, and keeps how
    far that moves every tensor. Ends where the reference's states end: it may have failed on
    the way.
    """
    count = job.settings.lockstep_steps
    moving = _Moving(job, run) if job.reference and job.settings.noise_runs else None
    batches = run.data.batches(count, job.settings.batch, job.settings.seed)
    for index, (x, y) in enumerate(batches):
        state = job.before(index)
        run.setup.set_rate(run.amp, index)  # before: Keras keeps momentum times the rate
        if job.reference:
            save_state(state, run)
        elif not load_state(state, run):
            return
        did, step = _one(run, x, y, index)
        if did.grads is not None:
            save_weights(job.own(f"grads-{index}.safetensors"), did.grads)
        save_weights(job.own(f"before-{index}.safetensors"), did.before)
        save_weights(job.own(f"after-{index}.safetensors"), did.after)
        emit(phase="lock-step", step=index + 1, of=count)
        with job.own("lockstep.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(step.to_dict()) + "\n")
        if moving is not None:
            noise = plain(moving.noise(index, did, x, y))
            with job.own("noise.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(noise) + "\n")


def _one(run: Prepared, x: Any, y: Any, index: int) -> tuple[StepTensors, StepResult]:
    before = run.weights()
    step = run.step(x, y, index, keep_grads=True)
    grads = run.driver.gradients(run.model, step.grads) if step.stepped else None
    return StepTensors(before, run.weights(), grads, float(step.loss)), step


class _Moving:
    """Repeats steps of the reference from moved weights."""

    def __init__(self, job: Job, like: Prepared) -> None:
        self._job = job
        self._run = Prepared(job, like.experiment, like.data, like.weights())
        self._unit = FORMATS[Policy.parse(job.policy).compute].spacing

    def noise(self, index: int, did: StepTensors, x: Any, y: Any) -> dict[str, Any]:
        """Return what ``noise_of`` says of one step, and whether moved ones were skipped."""
        run, found, skipped = self._run, [], []
        for number in range(min(self._job.settings.noise_runs, _MOVED)):
            run.setup.set_rate(run.amp, index)  # before: Keras keeps momentum times the rate
            load_state(self._job.before(index), run)
            seed = self._job.settings.seed + 1000 * (number + 1) + index
            run.driver.load_weights(run.model, _moved(run.weights(), self._unit, seed), run.amp)
            other, _ = _one(run, x, y, index)
            found.append(step_sizes(did, other))
            skipped.append(other.skipped)
        return {"noise": noise_of(found), "skipped": skipped}


def _moved(weights: list[LayerWeights], unit: float, seed: int) -> list[LayerWeights]:
    """Return weights moved by what a rounding may move them: up to half a unit in the last place.

    Running statistics stay: nothing rounds them.
    """
    rng = np.random.default_rng(seed)

    def half(old: Any, new: Any) -> Any:
        share = rng.uniform(0.0, 0.5, old.shape).astype(np.float32)
        return np.asarray(old + share * (new - old), np.float32)

    return [
        replace(
            old,
            arrays={
                n: a if n in STATISTICS else half(a, new.arrays[n]) for n, a in old.arrays.items()
            },
        )
        for old, new in zip(weights, perturbed(weights, unit, seed), strict=True)
    ]
