"""One backend's bytes, in a process of its own.

Started as ``python -m mpcore.tools.memory.worker TASK``. A task without ``measure`` predicts every
policy of the list; one with it trains a few steps under one, and counts what is there.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.machine import resident
from mpcore._lib.process import serve
from mpcore._lib.sizes import parse_bytes
from mpcore.backend.backend import check_policy, load_backend
from mpcore.backend.driver import OptimizerSpec
from mpcore.backend.parts import DRIVER
from mpcore.errors import BackendError
from mpcore.policy.policy import Policy
from mpcore.preparation import prepare
from mpcore.tools.experiment.experiment import Experiment, load_experiment
from mpcore.tools.memory.estimate import estimate_memory
from mpcore.tools.memory.fit import propose

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.backend.driver import Driver

__all__ = ["main"]

_STEPS = 3  # the first makes what is made lazily; the last leaves its gradients


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_work, json.loads(argv[0])))


def _work(task: dict[str, Any], emit: Callable[..., None]) -> None:
    experiment = load_experiment(Path(task["experiment"]))
    os.chdir(task["folder"])  # frameworks leave folders behind (MindSpore: rank_0/)
    (_measure if task["measure"] else _predict)(task, experiment, emit)


def _built(task: dict[str, Any], experiment: Experiment) -> tuple[Driver[Any], Any, Any, Any]:
    data = experiment.data()
    driver = DRIVER.of(task["backend"])
    driver.seed(0)
    model = driver.build(experiment.builder(task["backend"]), data.x_train[:2], data.layout)
    name = task["optimizer"]
    spec = experiment.optimizer if not name else OptimizerSpec(name)
    return driver, model, driver.optimizer(spec, model), data


def _predict(task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]) -> None:
    _, model, optimizer, _ = _built(task, experiment)
    can = load_backend(task["backend"]).capabilities(model)
    emit(about={"device": can.device, "versions": dict(can.versions)})
    for text in task["policies"]:
        policy = Policy.parse(text)
        try:
            check_policy(policy, can)
            refused = ""
        except BackendError as exc:
            refused = str(exc)
        emit(
            policy=text,
            predicted=estimate_memory(model, optimizer, policy).to_dict(),
            refused=refused,
        )
    if task["budget"]:
        plan = propose(model, optimizer, parse_bytes(task["budget"]), can)
        emit(plan=plan.to_dict(), verdict=plan.verdict)


def _measure(task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]) -> None:
    driver, model, optimizer, data = _built(task, experiment)
    text = task["policies"][0]
    gc.collect()
    before, _ = resident()
    amp = prepare(model, optimizer, text)
    loss_fn = driver.loss(experiment.loss, model)
    for x, y in data.batches(_STEPS, experiment.batch, 0):
        result = amp.step(loss_fn, *driver.batch(x, y, data.layout))
    if not result.stepped:
        msg = f"`policy` {text!r} skipped the last step, nothing can be measured: {result.reason}"
        raise BackendError(msg)
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
