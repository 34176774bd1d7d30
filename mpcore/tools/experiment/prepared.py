"""One prepared model of an experiment in a worker, and its state on disk."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load_file, save_file

from mpcore.backend.parts import MODES
from mpcore.checkpoint.layer_weights import LayerWeights, Slots, flatten, match, unflatten
from mpcore.errors import ExperimentError, check_choice
from mpcore.preparation import prepare
from mpcore.scaling.transition import LossScaleState
from mpcore.tools.experiment.job import write_json
from mpcore.tools.experiment.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mpcore.backend.layout import Arrays
    from mpcore.step.result import StepResult
    from mpcore.tools.experiment.configuration import Configuration
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment
    from mpcore.tools.experiment.job import Job

__all__ = ["Prepared", "begin", "load_state", "load_weights", "save_state", "save_weights"]


def begin(asked: Configuration) -> None:
    """Set what a configuration's mode and device need, before its framework builds anything."""
    modes = MODES.find(asked.backend)
    if modes is None:
        if asked.mode or asked.device:
            msg = f"the {asked.backend} backend has no modes or devices to choose, got {asked}"
            raise ExperimentError(msg)
        return
    if asked.mode:
        check_choice("mode", asked.mode, modes.MODES, ExperimentError)
    modes.begin(asked.mode or modes.MODES[0], asked.device)


class Prepared:
    """One prepared model of the experiment, at the common initial weights.

    Args:
        job: whose configuration, policy and settings it has.
        experiment: what is compared.
        data: its data.
        initial: weights to start from, in the order of the model's layers; None for its own.
        seed: of dropout and the like; None for that of the settings.

    Attributes:
        run: one step in the mode of its configuration, on the framework's tensors.
    """

    def __init__(
        self,
        job: Job,
        experiment: Experiment,
        data: Data,
        initial: list[LayerWeights] | None,
        seed: int | None = None,
    ) -> None:
        self.job, self.experiment, self.data = job, experiment, data
        self.has_classes = experiment.loss == "cross_entropy"
        setup = Setup(
            experiment,
            job.configuration.name,
            data,
            seed=job.settings.seed if seed is None else seed,
        )
        self.setup, self.driver = setup, setup.driver
        self.model = setup.model()
        if initial is not None:
            own = self.driver.weights(self.model)
            self.driver.load_weights(self.model, match(initial, own))
        self.optimizer = setup.optimizer(self.model)
        self.amp = prepare(self.model, self.optimizer, job.policy)
        self.loss_fn = setup.loss(self.model)
        modes, mode = MODES.find(job.backend), job.configuration.mode
        options = setup.step_options
        self.run: Callable[..., StepResult] = partial(self.amp.step, self.loss_fn, **options)
        if modes is not None:
            called = setup.loss(modes.called(self.model, mode))
            self.run = modes.stepper(self.amp, called, mode or modes.MODES[0], **options)

    def batch(self, x: Arrays, y: Arrays) -> tuple[Any, ...]:
        """Return numpy arrays as the framework's tensors, where the model is."""
        return self.setup.batch(x, y)

    def step(self, x: Arrays, y: Arrays, index: int, *, keep_grads: bool = False) -> StepResult:
        """Run step number ``index`` on numpy arrays, in the mode of its configuration."""
        self.setup.set_rate(self.amp, index)
        return self.run(*self.batch(x, y), keep_grads=keep_grads)

    def weights(self) -> list[LayerWeights]:
        """Return the float32 master values of every layer with weights."""
        return self.driver.weights(self.model, self.amp)


def save_weights(path: Path, weights: list[LayerWeights]) -> None:
    """Write weights to a safetensors file, its folder included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(flatten(weights), path)


def load_weights(path: Path) -> list[LayerWeights]:
    """Return what ``save_weights`` wrote."""
    return unflatten(load_file(path))


def save_state(folder: Path, run: Prepared) -> None:
    """Write weights, optimizer state and the state of the loss scale."""
    slots = run.driver.slots(run.model, run.amp)
    save_weights(folder / "weights.safetensors", run.weights())
    for name, values in slots.values.items():
        save_weights(folder / f"slot-{name}.safetensors", values)
    meta = {"steps": slots.steps, "slots": sorted(slots.values), "scale": list(run.amp.state)}
    write_json(folder / "state.json", meta)


def load_state(folder: Path, run: Prepared) -> bool:
    """Put back what ``save_state`` wrote, of any framework; False if there is nothing."""
    if not (folder / "state.json").exists():
        return False
    meta = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    own = run.driver.weights(run.model)
    weights = match(load_weights(folder / "weights.safetensors"), own)
    run.driver.load_weights(run.model, weights, run.amp)
    values = {name: load_weights(folder / f"slot-{name}.safetensors") for name in meta["slots"]}
    run.driver.load_slots(run.model, run.amp, Slots(meta["steps"], values))
    run.amp.state = LossScaleState(*meta["scale"])
    return True
