"""The runs of one backend under one policy, in a process of its own.

Started as ``python -m mpcore.compare.worker JOB`` by the runner. Progress goes as JSON lines
to the real standard output; whatever a framework prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

import mpcore as mp
from mpcore.compare.experiment import Data, Experiment, check_against_model, load_experiment
from mpcore.compare.job import Job, plain, read_data, write_json
from mpcore.compare.weights import LayerWeights, Slots, flatten, match, unflatten
from mpcore.dtypes import FORMATS
from mpcore.process import end_with_parent, open_events
from mpcore.scaling import ScaleState

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore.compare.driver import Driver

__all__ = ["main"]


class _Run:
    """One prepared model of the experiment, at the common initial weights."""

    def __init__(self, job: Job, experiment: Experiment, data: Data, initial: Any) -> None:
        self.job, self.data = job, data
        self.has_classes = experiment.loss == "cross_entropy"
        self.driver: Driver = mp.load_backend(job.backend).compare_driver()
        self.driver.seed(job.settings.seed)
        builder = experiment.builder(job.backend)
        self.model = self.driver.build(builder, data.x_train[:2], data.layout)
        if initial is not None:
            own = self.driver.weights(self.model)
            self.driver.load_weights(self.model, match(initial, own))
        self.optimizer = self.driver.optimizer(experiment.optimizer, self.model)
        self.amp = mp.prepare(self.model, self.optimizer, job.policy)
        self.loss_fn = self.driver.loss(experiment.loss, self.model)

    def step(self, x: Any, y: Any, *, keep_grads: bool = False) -> mp.StepResult:
        batch = self.driver.batch(x, y, self.data.layout)
        return self.amp.step(self.loss_fn, *batch, keep_grads=keep_grads)

    def weights(self) -> list[LayerWeights]:
        return self.driver.weights(self.model, self.amp)


def main(argv: list[str]) -> int:
    """Do one job; return 0, or 1 after writing the error to the result file."""
    job = Job.from_json(argv[0])
    end_with_parent()
    emit = open_events()
    job.result.parent.mkdir(parents=True, exist_ok=True)
    try:
        experiment = load_experiment(job.experiment)
        # The file may read what lies beside the user; what frameworks leave behind
        # (MindSpore: rank_0/) goes where it is thrown away.
        os.chdir(job.result.parent)
        result = (_inspect if job.kind == "inspect" else _run)(job, experiment, emit)
        code = 0
    except (Exception, SystemExit) as exc:  # every failure becomes a line of the report
        traceback.print_exc()
        known = isinstance(exc, mp.MpcoreError)
        text = str(exc) if known else f"{type(exc).__name__}: {exc}"
        result, code = {"error": " ".join(text.split()), "known": known}, 1
    write_json(job.result, plain(result))
    return code


def _inspect(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Build the model, list its weights, resolve every policy over it, and try the data on it."""
    data = read_data(job.data)
    backend = mp.load_backend(job.backend)
    driver = backend.compare_driver()
    driver.seed(job.settings.seed)
    model = driver.build(experiment.builder(job.backend), data.x_train[:2], data.layout)
    own = driver.weights(model)
    if not own:
        msg = f"the {job.backend} model has no parameters to train"
        raise mp.ExperimentError(msg)
    if job.reference:
        _save(job.initial, own)
    can = backend.capabilities(model)
    policies = {}
    for text in job.policy.split("\n"):
        policy = mp.Policy.parse(text)
        plan = mp.explain(model, policy)
        entry: dict[str, Any] = {"plan": plan.to_dict(), "simulated": False, "refused": None}
        try:
            entry["simulated"] = mp.backend.check_policy(policy, can)
        except mp.BackendError as exc:
            entry["refused"] = str(exc)
        policies[text] = entry
    layers = [
        {"path": w.path, "category": w.category}
        | {"arrays": {name: list(a.shape) for name, a in w.arrays.items()}}
        for w in own
    ]
    _try_data(job, experiment, data, model, own)
    return {
        "layers": layers,
        "device": can.device,
        "versions": dict(can.versions),
        "policies": policies,
    }


def _try_data(
    job: Job, experiment: Experiment, data: Data, model: Any, own: list[LayerWeights]
) -> None:
    """Run the model on one batch and refuse data that does not fit it."""
    driver = mp.load_backend(job.backend).compare_driver()
    amp = mp.prepare(model, driver.optimizer(experiment.optimizer, model), "float32")
    x, _ = next(data.batches(1, job.settings.batch, job.settings.seed))
    tables = [len(w.arrays["weight"]) for w in own if w.category == "embedding"]
    rows = max(tables, default=None)
    # Before the model sees them: tokens out of range kill some frameworks, and others read on.
    integers = x.dtype.kind in "iu" and rows is not None
    x = np.clip(x, 0, rows - 1).astype(x.dtype) if integers and rows else x
    try:
        shape = driver.predict(model, amp, x[:256], data.layout).shape[1:]
    except Exception as exc:
        msg = f"the {job.backend} model cannot run data() of shape {x.shape}: {exc}"
        raise mp.ExperimentError(" ".join(msg.split())) from exc
    check_against_model(data, experiment.loss, job.backend, tuple(shape), rows)


def _run(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Train freely, then (in the reference) perturbed, then in lock-step."""
    data = read_data(job.data)
    initial = _load(job.initial)
    result = _free(job, _Run(job, experiment, data, initial), emit)
    if job.reference and job.settings.band_runs:
        result["band_losses"] = []
        unit = FORMATS[mp.Policy.parse(job.policy).compute].spacing
        for number in range(job.settings.band_runs):
            moved = _perturb(initial, unit, seed=job.settings.seed + 1 + number)
            run = _Run(job, experiment, data, moved)
            losses = []
            for index, (x, y) in enumerate(_batches(job, data)):
                losses.append(run.step(x, y).loss)
                emit(phase=f"noise {number + 1}", step=index + 1, of=job.settings.steps)
            result["band_losses"].append(losses)
    if job.settings.lockstep_steps:
        _lockstep(job, _Run(job, experiment, data, initial), emit)
    return result


def _batches(job: Job, data: Data) -> Any:
    return data.batches(job.settings.steps, job.settings.batch, job.settings.seed)


def _free(job: Job, run: _Run, emit: Callable[..., None]) -> dict[str, Any]:
    records, seconds = [], []
    with job.own("records.jsonl").open("w", encoding="utf-8", buffering=1) as stream:
        for index, (x, y) in enumerate(_batches(job, run.data)):
            start = time.perf_counter()
            step = run.step(x, y)
            loss = step.loss  # waits for the device
            seconds.append(time.perf_counter() - start)
            records.append({"step": index, "seconds": seconds[-1], **step.to_dict()})
            stream.write(json.dumps(records[-1]) + "\n")
            emit(phase="train", step=index + 1, of=job.settings.steps, loss=loss)
    peak = _peak_memory()
    timed = np.array(seconds[min(job.settings.warmup, len(seconds) - 1) :])
    return {
        "records": records,
        "step_seconds": {
            "median": float(np.median(timed)),
            "p90": float(np.quantile(timed, 0.9)),
        },
        "peak_memory_bytes": peak,
        "test_accuracy": _accuracy(run),
    }


def _accuracy(run: _Run) -> float | None:
    x, y = run.data.x_test, run.data.y_test
    if not len(x) or not run.has_classes:
        return None
    count = min(len(x), 1000)  # MindSpore's convolution takes seconds for more
    guess = run.driver.predict(run.model, run.amp, x[:count], run.data.layout).argmax(-1)
    return float((guess == y[:count]).mean())


def _lockstep(job: Job, run: _Run, emit: Callable[..., None]) -> None:
    """Run single steps that all start from the reference's state; keep what each one did.

    Ends where the reference's states end: it may have failed on the way.
    """
    count = job.settings.lockstep_steps
    own_names = run.driver.weights(run.model)
    batches = run.data.batches(count, job.settings.batch, job.settings.seed)
    for index, (x, y) in enumerate(batches):
        state = job.own(f"before-{index}", backend="reference")
        if job.reference:
            _save_state(state, run)
        elif not (state / "state.json").exists():
            return
        else:
            _load_state(state, run, own_names)
        step = run.step(x, y, keep_grads=True)
        if step.stepped:
            grads = run.driver.gradients(run.model, step.grads)
            _save(job.own(f"grads-{index}.safetensors"), grads)
        _save(job.own(f"after-{index}.safetensors"), run.weights())
        emit(phase="lock-step", step=index + 1, of=count)
        with job.own("lockstep.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(step.to_dict()) + "\n")


def _save_state(state: Path, run: _Run) -> None:
    slots = run.driver.slots(run.model, run.amp)
    _save(state / "weights.safetensors", run.weights())
    for name, values in slots.values.items():
        _save(state / f"slot-{name}.safetensors", values)
    meta = {"steps": slots.steps, "slots": sorted(slots.values), "scale": list(run.amp.state)}
    write_json(state / "state.json", meta)


def _load_state(state: Path, run: _Run, own: list[LayerWeights]) -> None:
    meta = json.loads((state / "state.json").read_text(encoding="utf-8"))
    weights = match(_load(state / "weights.safetensors"), own)
    run.driver.load_weights(run.model, weights, run.amp)
    values = {name: _load(state / f"slot-{name}.safetensors") for name in meta["slots"]}
    run.driver.load_slots(run.model, run.amp, Slots(meta["steps"], values))
    run.amp.state = ScaleState(*meta["scale"])


def _perturb(weights: list[LayerWeights], unit: float, seed: int) -> list[LayerWeights]:
    """Return the weights moved by one unit in the last place of the compute format."""
    rng = np.random.default_rng(seed)

    def move(a: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        sign = rng.choice(np.array([-1, 1], np.float32), a.shape)
        exponent = np.exp2(np.floor(np.log2(np.maximum(np.abs(a), 1e-30))))
        moved = a + sign * np.float32(unit) * exponent.astype(np.float32)
        return np.asarray(moved, np.float32)

    return [
        LayerWeights(
            w.path, w.category, {n: move(a) if a.any() else a for n, a in w.arrays.items()}
        )
        for w in weights
    ]


def _peak_memory() -> int | None:
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: Linux hands the peak of the parent's memory down to its children.
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
        peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
        if peaks:
            return peaks[0]
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _save(path: Path, weights: list[LayerWeights]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(flatten(weights), path)


def _load(path: Path) -> list[LayerWeights]:
    return unflatten(load_file(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
