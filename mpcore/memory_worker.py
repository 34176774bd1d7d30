"""One backend's bytes, in a process of its own.

Started as ``python -m mpcore.memory_worker TASK``. A task without ``measure`` predicts every
policy of the list; one with it trains a few steps under one, and counts what is there.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpcore as mp
from mpcore.compare.experiment import Experiment, OptimizerSpec, load_experiment
from mpcore.machine import resident
from mpcore.memory import memory
from mpcore.memory_plan import propose
from mpcore.process import end_with_parent, open_events
from mpcore.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.compare.driver import Driver

__all__ = ["main"]

_STEPS = 3  # the first makes what is made lazily; the last leaves its gradients


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    task = json.loads(argv[0])
    end_with_parent()
    emit = open_events()
    try:
        experiment = load_experiment(Path(task["experiment"]))
        os.chdir(task["folder"])  # frameworks leave folders behind (MindSpore: rank_0/)
        (_measure if task["measure"] else _predict)(task, experiment, emit)
    except (Exception, SystemExit) as exc:  # every failure becomes a row of the answer
        traceback.print_exc()
        text = str(exc) if isinstance(exc, mp.MpcoreError) else f"{type(exc).__name__}: {exc}"
        emit(error=" ".join(text.split()))
        return 1
    return 0


def _built(task: dict[str, Any], experiment: Experiment) -> tuple[Driver, Any, Any, Any]:
    data = experiment.data()
    driver: Driver = mp.load_backend(task["backend"]).compare_driver()
    driver.seed(0)
    model = driver.build(experiment.builder(task["backend"]), data.x_train[:2], data.layout)
    name = task["optimizer"]
    spec = experiment.optimizer if not name else OptimizerSpec(name)
    return driver, model, driver.optimizer(spec, model), data


def _predict(task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]) -> None:
    _, model, optimizer, _ = _built(task, experiment)
    can = mp.load_backend(task["backend"]).capabilities(model)
    emit(about={"device": can.device, "versions": dict(can.versions)})
    for text in task["policies"]:
        policy = mp.Policy.parse(text)
        try:
            mp.backend.check_policy(policy, can)
            refused = ""
        except mp.BackendError as exc:
            refused = str(exc)
        emit(policy=text, predicted=memory(model, optimizer, policy).to_dict(), refused=refused)
    if task["budget"]:
        plan = propose(model, optimizer, parse_bytes(task["budget"]), can)
        emit(plan=plan.to_dict(), verdict=plan.verdict)


def _measure(task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]) -> None:
    driver, model, optimizer, data = _built(task, experiment)
    text = task["policies"][0]
    gc.collect()
    before, _ = resident()
    amp = mp.prepare(model, optimizer, text)
    loss_fn = driver.loss(experiment.loss, model)
    for x, y in data.batches(_STEPS, experiment.batch, 0):
        result = amp.step(loss_fn, *driver.batch(x, y, data.layout))
    if not result.stepped:
        msg = f"`policy` {text!r} skipped the last step, nothing can be measured: {result.reason}"
        raise mp.BackendError(msg)
    gc.collect()
    after, peak = resident()
    emit(
        policy=text,
        measured={
            "bytes": amp.array_bytes(),
            "resident_growth": None if before is None or after is None else after - before,
            "resident_peak": peak,
            "allocator": amp.allocator_bytes(),
        },
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
