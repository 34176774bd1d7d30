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
from mpcore.errors import BackendError
from mpcore.policy.policy import Policy
from mpcore.preparation import prepare
from mpcore.tools.experiment.experiment import Experiment, load_experiment
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.memory.estimate import estimate_memory
from mpcore.tools.memory.fit import propose

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["main"]

_STEPS = 3  # the first makes what is made lazily; the last leaves its gradients


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_work, json.loads(argv[0])))


def _work(task: dict[str, Any], emit: Callable[..., None]) -> None:
    experiment = load_experiment(Path(task["experiment"]))
    os.chdir(task["folder"])  # frameworks leave folders behind (MindSpore: rank_0/)
    (_measure if task["measure"] else _predict)(task, experiment, emit)


def _built(task: dict[str, Any], experiment: Experiment) -> tuple[Setup, Any, Any]:
    setup = Setup(experiment, task["backend"])
    model, name = setup.model(), task["optimizer"]
    return setup, model, setup.optimizer(model, OptimizerSpec(name) if name else None)


def _predict(task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]) -> None:
    setup, model, optimizer = _built(task, experiment)
    can = load_backend(setup.backend).capabilities(model)
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
    setup, model, optimizer = _built(task, experiment)
    text = task["policies"][0]
    gc.collect()
    before, _ = resident()
    amp = prepare(model, optimizer, text)
    loss_fn = setup.loss(model)
    for batch in setup.batches(_STEPS):
        result = amp.step(loss_fn, *batch, **setup.step_options)
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
