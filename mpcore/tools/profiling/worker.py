"""One profile, in a process of its own.

Started as ``python -m mpcore.tools.profiling.worker TASK``.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import serve
from mpcore.backend.parts import PROFILER
from mpcore.backend.profiler import Spread
from mpcore.errors import MpcoreError
from mpcore.tools.experiment.configuration import Configuration
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.prepared import begin
from mpcore.tools.profiling.duel import duel
from mpcore.tools.profiling.looking import look
from mpcore.tools.profiling.result import Measured, result_of
from mpcore.tools.profiling.rules import Candidate, together
from mpcore.tools.profiling.stepping import Run
from mpcore.tools.profiling.timing import cores
from mpcore.tools.profiling.values import Versus

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.policy.plan import Plan
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["main"]

_SECONDS = 20.0  # for the pairs of one rival, once there are enough to look at


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_work, json.loads(argv[0])))


def _work(task: dict[str, Any], emit: Callable[..., None]) -> None:
    experiment = load_experiment(Path(task["experiment"]))
    os.chdir(task["folder"])  # profilers and frameworks leave files behind
    begin(Configuration.parse(task["backend"]))
    emit(profile=_profile(task, experiment, emit))


def _profile(
    task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]
) -> dict[str, Any]:
    profiler = PROFILER.of(Configuration.parse(task["backend"]).backend)
    threads = profiler.set_up()
    data = experiment.data()
    run = _run(task, experiment, data, task["policy"])
    emit(phase="warm up", step=0, of=1)
    run.warm_up()
    looked = look(run, profiler, emit)
    plan, can = run.amp.plan, run.backend.capabilities(run.model)
    rivals = [*_rivals(plan), *looked.worth[: task["trials"]]]
    versus: list[Versus] = []
    untried: list[str] = []
    while rivals:
        rival = rivals.pop(0)
        emit(phase="try rules", step=len(versus), of=len(versus) + len(rivals) + 1)
        try:
            versus.append(_against(run, _run(task, experiment, data, rival.policy), rival))
        except MpcoreError as exc:
            untried.append(f"{rival.rule or rival.policy}: {' '.join(str(exc).split())}")
        rivals += together(plan.policy, versus) if not rivals else []
    measured = Measured(
        plan,
        Spread.of(looked.plain),
        looked.recording,
        looked.kernels,
        versus,
        untried,
        looked.skipped,
        run.amp.simulated,
    )
    about = {
        "backend": task["backend"],
        "device": can.device,
        "versions": dict(can.versions),
        "threads": threads,
        "cores": cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,  # not on Windows
        "batch": task["batch"] or experiment.batch,
    }
    return about | result_of(measured)


def _rivals(plan: Plan) -> list[Candidate]:
    """Return float32, unless that is what the policy is."""
    if str(plan.policy) == "float32":
        return []
    return [Candidate("float32", "", "no mixed precision", 0.0)]


def _run(task: dict[str, Any], experiment: Experiment, data: Data, text: str) -> Run:
    name = Configuration.parse(task["backend"]).name
    steps, batch = task["steps"], task["batch"]
    return Run(experiment, name, data, text, steps=steps, batch=batch)


def _against(run: Run, other: Run, rival: Candidate) -> Versus:
    """Take steps under both until the sign test is decided, or gives up."""
    other.warm_up()
    found = duel(run.seconds, other.seconds, seconds=_SECONDS, either=not rival.rule)
    saves = [a - b for a, b in zip(found.now, found.then, strict=True)]
    return Versus(
        rival.policy,
        rival.rule,
        rival.why,
        Spread.of(found.now),
        Spread.of(found.then),
        Spread.of(saves),
        len(found.now),
        found.decision,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
