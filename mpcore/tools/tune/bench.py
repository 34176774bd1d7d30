"""What all parts of one search share: the experiment in its framework, the clock, the log."""

from __future__ import annotations

import hashlib
import os
import time
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from mpcore._lib.machine import keep_freed_memory
from mpcore.backend.backend import load_backend
from mpcore.backend.layout import as_tuple
from mpcore.backend.parts import CALLS, PROFILER
from mpcore.errors import ExperimentError
from mpcore.policy.policy import Policy
from mpcore.tools.experiment.experiment import OWN
from mpcore.tools.experiment.names import backend_of
from mpcore.tools.experiment.setup import Setup
from mpcore.tools.profiling.prediction import Predictor
from mpcore.tools.profiling.stepping import Run, clock_of
from mpcore.tools.profiling.timing import cores, time_kernels_by
from mpcore.tools.tune.candidates import plan_key
from mpcore.tools.tune.log import Entry, Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpcore.backend.moves import Move
    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.tune.task import Task

__all__ = ["BATCHES", "Bench", "OverError"]

BATCHES = 5
"""That timed steps go round."""

_QUICK = 5  # steps of float32, for what a step takes about


class OverError(Exception):
    """The budget is spent: what was found so far is the answer."""


class Bench:
    """One experiment in one framework, ready to be measured.

    Args:
        experiment: what is run.
        task: how it is searched.
        emit: called with ``found=entry``, ``key=...`` and what goes on.
        earlier: returns the entries that a log holds of the search with a key.

    Attributes:
        taken: whole steps of float32, for what one takes.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        emit: Callable[..., None],
        earlier: Callable[[str], Iterable[Entry]],
    ) -> None:
        self.start = time.perf_counter()
        self.experiment, self.task, self.emit = experiment, task, emit
        self.profiler = PROFILER.of(backend_of(task.backend))
        self._threads = self.profiler.set_up()
        self.data = experiment.data()
        _check(experiment, self.data)
        emit(phase="build", step=0, of=1)
        setup = Setup(experiment, task.backend, self.data)
        model = setup.model()
        backend = load_backend(setup.backend)
        self.layers = backend.layers(model)
        self.can = backend.capabilities(model)
        self.clock, self._clock = clock_of(self.can.device, self._threads)
        time_kernels_by(self._clock)
        self._options = setup.step_options
        self.batch = task.batch or experiment.batch
        self.examples = len(as_tuple(self.data.x_train)[0])
        self.steps = task.steps or experiment.steps
        self.taken = 0
        about = self._about()
        key = task.key(about)
        emit(key=key)
        self.log = Log(emit, earlier(key))
        del about["layers"], about["data"]
        # What changes from call to call is told, and is no part of the key.
        self.log.tell("about", **about, cores=cores(), load=_load(), fast=task.fast)

    def _about(self) -> dict[str, Any]:
        path = self.experiment.path
        source = path.read_bytes() if path.is_file() else b""
        return {
            "backend": self.task.backend,
            "experiment": self.experiment.name,
            "source": hashlib.sha256(source).hexdigest()[:16],
            "device": self.can.device,
            "versions": dict(self.can.versions),
            "threads": self._threads,
            "clock": self.clock,
            "batch": self.batch,
            "steps": self.steps,
            "loss": self.experiment.loss,
            "optimizer": str(self.experiment.optimizer),
            "layers": [
                [e.path, e.type, [[p.name, *p.shape] for p in e.params]] for e in self.layers
            ],
            "data": [
                [a.dtype.str, *a.shape]
                for part in (self.data.x_train, self.data.y_train)
                for a in as_tuple(part)
            ],
        }

    @cached_property
    def weights(self) -> list[LayerWeights]:
        """What every step and training run starts from."""
        setup = Setup(self.experiment, self.task.backend, self.data)
        found: list[LayerWeights] = setup.driver.weights(setup.model())
        return found

    @cached_property
    def predictor(self) -> Predictor | None:
        """What foretells steps of any policy; None where calls cannot be run alone."""
        calls = CALLS.find(backend_of(self.task.backend))
        if calls is None or self.can.device != "cpu":  # nothing waits for a device
            return None
        setup = Setup(self.experiment, self.task.backend, self.data)
        model = setup.model()
        batch = next(iter(setup.batches(1, self.task.batch)))
        keep_freed_memory()
        heard = calls(model, setup.loss(model), batch)
        return Predictor(heard, self.layers, self.can.device, before=self.check_time)

    def run(
        self,
        policy: str,
        move: Move | None = None,
        *,
        batch: int | None = None,
        wall: bool = False,
    ) -> Run:
        """Return a fresh model under a policy, ready for timed steps.

        Args:
            policy: that it runs under.
            move: what is changed beside precision.
            batch: examples a step; None for the task's.
            wall: whether its steps are timed by the wall clock in any case.
        """
        return Run(
            self.experiment,
            self.task.backend,
            self.data,
            policy,
            steps=BATCHES,
            batch=batch or self.task.batch,
            clock=time.perf_counter if wall else self._clock,
            options=self._options,
            move=move,
        )

    def quick(self) -> Entry:
        """Return the seconds of a float32 step, by the clock of duels and by the wall's."""

        def measure() -> dict[str, Any]:
            run = self.run("float32")
            self.taken += run.warm_up() + _QUICK
            start = time.perf_counter()
            seconds = [run.seconds() for _ in range(_QUICK)]
            wall = (time.perf_counter() - start) / _QUICK
            return {"seconds": median(seconds), "wall": wall, "promises": []}

        return self.log.once("looked", {"policy": "float32"}, measure)

    def seconds_left(self) -> float:
        """Return what is left of the budget."""
        return self.task.budget - (time.perf_counter() - self.start)

    def check_time(self) -> None:
        """Raise OverError where the budget is spent."""
        if self.seconds_left() <= 0:
            raise OverError

    def key(self, policy: str) -> object:
        """Return what tells a policy's plan from another's."""
        return plan_key(Policy.parse(policy), self.layers, self.can.device)


def _check(experiment: Experiment, data: Data) -> None:
    """Refuse data from which nothing can be learnt, so that any policy would pass."""
    if experiment.loss == OWN or isinstance(data.y_train, tuple):
        return
    if data.y_train.size and (data.y_train == data.y_train.flat[0]).all():
        what = "class" if experiment.loss == "cross_entropy" else "value"
        msg = f"`data.y_train` must hold more than one {what}: any policy would learn it"
        raise ExperimentError(msg)


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # not on Windows
