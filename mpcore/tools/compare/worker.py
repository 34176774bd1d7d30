"""The runs of one backend under one policy, in a process of its own.

Started as ``python -m mpcore.tools.compare.worker JOB`` by the runner. Progress goes as JSON lines
to the real standard output; whatever a framework prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.process import serve, told
from mpcore.backend.backend import check_policy, load_backend
from mpcore.backend.layout import as_tuple
from mpcore.capabilities.proofs import proved
from mpcore.errors import BackendError, ExperimentError, MpcoreError
from mpcore.policy.policy import Policy
from mpcore.preparation import prepare
from mpcore.tools.compare.depth import exact, one_step
from mpcore.tools.compare.reproduce import one_layer
from mpcore.tools.compare.training import train
from mpcore.tools.experiment.data import check_against_model
from mpcore.tools.experiment.experiment import OWN, Experiment, load_experiment
from mpcore.tools.experiment.job import Job, plain, read_data, write_json
from mpcore.tools.experiment.prepared import begin, save_weights
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.inspection.explain import explain
from mpcore.tools.memory.estimate import estimate_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.checkpoint.layer_weights import LayerWeights

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Do one job; return 0, or 1 after writing the error to the result file."""
    job = Job.from_json(argv[0])
    # Its folder is the parent's to make: one that is gone was removed with the whole comparison.
    return serve(partial(_work, job), partial(_failed, job))


def _work(job: Job, emit: Callable[..., None]) -> None:
    experiment = load_experiment(job.experiment)
    # The file may read what lies beside the user; what frameworks leave behind
    # (MindSpore: rank_0/) goes where it is thrown away.
    os.chdir(job.result.parent)
    begin(job.configuration)
    write_json(job.result, plain(_JOBS[job.kind](job, experiment, emit)))


def _failed(job: Job, exc: BaseException, _: Callable[..., None]) -> None:
    """Leave the error as the result: it becomes a line of the report."""
    write_json(job.result, {"error": told(exc), "known": isinstance(exc, MpcoreError)})


def _inspect(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Build the model, list its weights, resolve every policy over it, and try the data on it."""
    data = read_data(job.data)
    backend = load_backend(job.backend)
    setup = Setup(experiment, job.configuration.name, data, seed=job.settings.seed)
    model = setup.model()
    own = setup.driver.weights(model)
    if not own:
        msg = f"the {job.backend} model has no parameters to train"
        raise ExperimentError(msg)
    if job.reference:
        save_weights(job.initial, own)
    can = backend.capabilities(model)
    policies = {}
    for text in job.policy.split("\n"):
        policy = Policy.parse(text)
        plan = explain(model, policy)
        entry: dict[str, Any] = {"plan": plan.to_dict(), "simulated": False, "refused": None}
        entry["bytes"] = _predicted(setup, model, policy)
        try:
            entry["simulated"] = check_policy(policy, can)
        except BackendError as exc:
            entry["refused"] = str(exc)
        policies[text] = entry
    layers = [
        {"path": w.path, "category": w.category}
        | {"arrays": {name: list(a.shape) for name, a in w.arrays.items()}}
        for w in own
    ]
    _try_data(job, setup, model, own)
    return {
        "layers": layers,
        "device": can.device,
        "versions": dict(can.versions),
        "policies": policies,
    }


def _predicted(setup: Setup, model: Any, policy: Policy) -> dict[str, Any]:
    """Return the bytes between steps, and their parameters; empty if they cannot be foretold."""
    try:
        found = estimate_memory(model, setup.optimizer(model), policy)
    except BackendError:
        return {}  # an optimizer whose state is not known
    return {"total": found.total, "values": found.values}


def _try_data(job: Job, setup: Setup, model: Any, own: list[LayerWeights]) -> None:
    """Run the model on one batch and refuse data that does not fit it."""
    data, loss = setup.data, setup.experiment.loss
    amp = prepare(model, setup.optimizer(model), "float32")
    x, y = next(data.batches(1, min(job.settings.batch, 256), job.settings.seed))
    tables = [len(w.arrays["weight"]) for w in own if w.category == "embedding"]
    rows = max(tables, default=None)
    # Before the model sees them: tokens out of range kill some frameworks, and others read on.
    if rows is not None and not isinstance(x, tuple) and x.dtype.kind in "iu":
        x = np.clip(x, 0, rows - 1).astype(x.dtype)
    shapes = ", ".join(str(array.shape) for array in as_tuple(x))
    if loss == OWN:
        try:
            amp.step(setup.loss(model), *setup.batch(x, y))
        except Exception as exc:
            msg = f"loss() in {setup.experiment.path.name} cannot run in {setup.name}: {exc}"
            raise ExperimentError(" ".join(msg.split())) from exc
        return
    try:
        shape = setup.predict(model, amp, x).shape[1:]
    except Exception as exc:
        msg = f"the {setup.name} model cannot run data() of shape {shapes}: {exc}"
        raise ExperimentError(" ".join(msg.split())) from exc
    check_against_model(data, loss, setup.backend, tuple(shape), rows)


def _proofs(job: Job, experiment: Experiment, emit: Callable[..., None]) -> dict[str, Any]:
    """Return what the proofs of the framework's known differences measure here."""
    del experiment
    emit(phase="proofs", step=0, of=1)
    shown = proved(load_backend(job.backend))
    return {"shown": [vars(each) for each in shown]}


_JOBS: dict[str, Callable[[Job, Experiment, Callable[..., None]], dict[str, Any]]] = {
    "inspect": _inspect,
    "run": train,
    "depth": one_step,
    "exact": exact,
    "proofs": _proofs,
    "layer": one_layer,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
