"""One profile, in a process of its own.

Started as ``python -m mpcore.tools.profiling.worker TASK``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore._lib.process import serve
from mpcore.backend.backend import load_backend
from mpcore.backend.parts import PROFILER
from mpcore.backend.profiler import CAST, Spread
from mpcore.errors import MpcoreError
from mpcore.numerics.dtypes import is_low
from mpcore.preparation import prepare
from mpcore.tools.experiment.experiment import load_experiment
from mpcore.tools.experiment.names import backend_of
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.profiling.duel import duel
from mpcore.tools.profiling.result import Measured, result_of
from mpcore.tools.profiling.rules import Candidate, candidates, together
from mpcore.tools.profiling.timing import cores
from mpcore.tools.profiling.values import Versus

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.backend.profiler import Recording
    from mpcore.policy.plan import Plan
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["main"]

_WARM_UP = 3  # steps that compile, allocate and make lazy state
_KERNELS = 16  # the heaviest; those below are a few per mille of a step each
_FEWEST = 5
_SECONDS = 20.0  # for the pairs of one rival, once there are enough to look at


def main(argv: list[str]) -> int:
    """Do one task; return 0, or 1 after sending the error."""
    return serve(partial(_work, json.loads(argv[0])))


def _work(task: dict[str, Any], emit: Callable[..., None]) -> None:
    experiment = load_experiment(Path(task["experiment"]))
    os.chdir(task["folder"])  # profilers and frameworks leave files behind
    emit(profile=_profile(task, experiment, emit))


class _Run:
    """One prepared model of the experiment, with batches that its steps go round."""

    def __init__(self, task: dict[str, Any], experiment: Experiment, data: Data, text: str) -> None:
        setup = Setup(experiment, task["backend"], data)
        self.backend = load_backend(setup.backend)
        self.model = setup.model()
        self.layers = self.backend.layers(self.model)
        self.amp = prepare(self.model, setup.optimizer(self.model), text)
        self.loss_fn = setup.loss(self.model)
        self.batches = list(setup.batches(task["steps"], task["batch"]))
        self._next = 0

    def seconds(self) -> float:
        """Take one step; return how long it took."""
        batch = self.batches[self._next % len(self.batches)]
        self._next += 1
        start = time.perf_counter()
        self.amp.step(self.loss_fn, *batch).loss  # noqa: B018  # waits for the device
        return time.perf_counter() - start

    def warm_up(self) -> None:
        """Take the steps that are slower than the others."""
        for _ in range(_WARM_UP):
            self.seconds()


def _profile(
    task: dict[str, Any], experiment: Experiment, emit: Callable[..., None]
) -> dict[str, Any]:
    profiler = PROFILER.of(backend_of(task["backend"]))
    threads = profiler.set_up()
    data = experiment.data()
    run = _Run(task, experiment, data, task["policy"])
    emit(phase="warm up", step=0, of=1)
    run.warm_up()
    emit(phase="steps", step=0, of=1)
    count = max(len(run.batches), _FEWEST)
    plain = [run.seconds() for _ in range(count)]
    emit(phase="profile", step=0, of=1)
    before = int(run.amp.state.skipped_steps)
    recording = profiler.record(run.amp, run.loss_fn, run.batches)
    skipped = int(run.amp.state.skipped_steps) - before
    plain += [run.seconds() for _ in range(count)]  # before and after: the machine drifts
    plan, can = run.amp.plan, run.backend.capabilities(run.model)
    low = plan.policy.compute
    kernels = []
    if is_low(low) and not run.amp.simulated:
        emit(phase="kernels", step=0, of=1)
        heaviest = _heaviest(recording)
        kernels = profiler.kernels(run.amp, run.loss_fn, run.batches[0], heaviest, low)
    worth = candidates(plan, run.layers, recording.ops, recording.steps, kernels, device=can.device)
    rivals = [*_rivals(plan), *([] if run.amp.simulated else worth[: task["trials"]])]
    versus: list[Versus] = []
    untried: list[str] = []
    while rivals:
        rival = rivals.pop(0)
        emit(phase="try rules", step=len(versus), of=len(versus) + len(rivals) + 1)
        try:
            versus.append(_against(run, _Run(task, experiment, data, rival.policy), rival))
        except MpcoreError as exc:
            untried.append(f"{rival.rule or rival.policy}: {' '.join(str(exc).split())}")
        rivals += together(plan.policy, versus) if not rivals else []
    measured = Measured(
        plan, Spread.of(plain), recording, kernels, versus, untried, skipped, run.amp.simulated
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


def _heaviest(recording: Recording) -> list[str]:
    """Return the kernels that most time goes to, casts left out."""
    found: dict[str, float] = {}
    for op in recording.ops:
        for name, (_, seconds) in op.kernels.items() if op.op != CAST else ():
            found[name] = found.get(name, 0.0) + seconds
    return sorted(found, key=lambda name: -found[name])[:_KERNELS]


def _against(run: _Run, other: _Run, rival: Candidate) -> Versus:
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
