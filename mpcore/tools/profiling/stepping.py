"""Whole steps of an experiment under one policy, timed: what profiles and duels are made of."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import load_backend
from mpcore.backend.moves import Move
from mpcore.preparation import prepare
from mpcore.tools.experiment.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["Run", "clock_of"]

_WARM_UP = 3  # steps that compile, allocate and make lazy state


def clock_of(device: str, threads: int) -> tuple[str, Callable[[], float]]:
    """Return the clock that whole steps are timed by, and its name.

    One thread on a CPU is timed by what the process computed, which other processes hardly move;
    several threads, or a device, only by the wall clock.
    """
    if threads == 1 and device.partition(":")[0].lower() == "cpu":
        return "CPU time", time.process_time
    return "wall clock", time.perf_counter


class Run:
    """One prepared model of the experiment, with batches that its steps go round.

    Args:
        experiment: what is run.
        name: of the builder.
        data: its data.
        text: the policy.
        steps: number of batches.
        batch: examples a step; None for the experiment's.
        clock: what steps are timed by.
        options: what ``amp.step`` is told beside the batch.
        move: what is changed beside precision.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        data: Data,
        text: str,
        *,
        steps: int,
        batch: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        options: Mapping[str, Any] | None = None,
        move: Move | None = None,
    ) -> None:
        setup = Setup(experiment, name, data)
        self.backend = load_backend(setup.backend)
        move = move or Move("")
        self.model = move.build(setup.model())
        self.layers = self.backend.layers(self.model)
        self.amp = prepare(self.model, setup.optimizer(self.model), text)
        self.loss_fn = setup.loss(self.model)
        self.batches = [move.place(one) for one in setup.batches(steps, batch)]
        self._clock, self._next = clock, 0
        options = dict(options or {})
        self._step: Callable[..., Any] = (
            partial(self.amp.step, self.loss_fn, **options)
            if move.stepper is None
            else move.stepper(self.amp, self.model, setup.loss, options)
        )

    def seconds(self) -> float:
        """Take one step; return how long it took."""
        batch = self.batches[self._next % len(self.batches)]
        self._next += 1
        start = self._clock()
        self._step(*batch).loss  # noqa: B018  # waits for the device
        return self._clock() - start

    def warm_up(self) -> int:
        """Take the steps that are slower than the others; return how many they are."""
        for _ in range(_WARM_UP):
            self.seconds()
        return _WARM_UP
