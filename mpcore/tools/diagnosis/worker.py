"""Trains an experiment until a step is skipped, and diagnoses it; in a process of its own.

Started as ``python -m mpcore.tools.diagnosis.worker TASK``.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import serve
from mpcore.preparation import prepare
from mpcore.tools.diagnosis.diagnose import diagnose
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

_TOLD = 10  # steps between two events of progress


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_train, json.loads(argv[0])))


def _train(task: dict[str, Any], emit: Callable[..., None]) -> None:
    experiment = load_experiment(Path(task["experiment"]))
    os.chdir(task["folder"])  # frameworks leave folders behind (MindSpore: rank_0/)
    setup = Setup(experiment, task["backend"])
    model = setup.model()
    amp = prepare(model, setup.optimizer(model), task["policy"])
    loss_fn = setup.loss(model)
    steps = task["steps"]
    for index, batch in enumerate(setup.batches(steps)):
        setup.set_rate(amp, index)
        result = amp.step(loss_fn, *batch, **setup.step_options)
        if not result.stepped:
            emit(phase="diagnose", step=result.step, of=steps)
            emit(postmortem=diagnose(amp, result).to_dict())
            return
        if result.step % _TOLD == 0:
            emit(phase="train", step=result.step, of=steps, loss=result.loss)
    emit(taken=steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
