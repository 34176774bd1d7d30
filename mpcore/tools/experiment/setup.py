"""An experiment in one framework: its model, optimizer, loss and batches there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.backend.layout import as_tuple
from mpcore.backend.parts import DRIVER
from mpcore.errors import ExperimentError
from mpcore.tools.experiment.experiment import OWN
from mpcore.tools.experiment.names import backend_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp
    from mpcore.backend.driver import Driver, OptimizerSpec
    from mpcore.backend.layout import Arrays
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["Setup", "example_of"]


class Setup:
    """What a worker runs of an experiment; nothing of it decides anything.

    Args:
        experiment: what is run.
        name: of the builder, such as ``"torch"`` or ``"torch_a"``.
        data: the experiment's data; called for if None.
        seed: of the framework's random numbers.

    Attributes:
        backend: name of the backend.
        driver: its part in experiments.
        data: the arrays.
    """

    def __init__(
        self, experiment: Experiment, name: str, data: Data | None = None, *, seed: int = 0
    ) -> None:
        self.experiment, self.name, self.backend = experiment, name, backend_of(name)
        self.data = experiment.data() if data is None else data
        self.driver: Driver[Any] = DRIVER.of(self.backend)
        # Before the model is built: MindSpore's dropout takes its seed when it is made.
        self.driver.seed(seed)

    def model(self) -> Any:
        """Return a new model, with its weights created."""
        few = next(self.data.batches(1, 2, 0))[0]
        return self.driver.build(self.experiment.builder(self.name), few, self.data.layout)

    def optimizer(self, model: Any, spec: OptimizerSpec | None = None) -> Any:
        """Return the framework's own optimizer over ``model``."""
        return self.driver.optimizer(spec or self.experiment.optimizer, model)

    def loss(self, model: Any) -> Callable[..., Any]:
        """Return ``loss_fn(*batch)`` that runs ``model``."""
        if self.experiment.loss != OWN:
            return self.driver.loss(
                self.experiment.loss,
                model,
                label_smoothing=self.experiment.label_smoothing,
                layout=self._target_layout,
            )
        own, neutral = self.experiment.own_loss(self.name)
        if not neutral:

            def of_framework(*batch: Any) -> Any:
                return own(model, *batch)

            return of_framework
        ops, forward = self.driver.ops, self.driver.forward(model)

        def of_all(*batch: Any) -> Any:
            return own(ops, forward, *batch)

        return of_all

    def batch(self, x: Arrays, y: Arrays) -> tuple[Any, ...]:
        """Return inputs, then targets, as the framework's tensors."""
        return self.driver.batch(x, y, self.data.layout, self.data.own_targets)

    def batches(self, steps: int, batch: int | None = None) -> Iterator[tuple[Any, ...]]:
        """Yield batches as the framework's tensors."""
        for x, y in self.data.batches(steps, batch or self.experiment.batch, 0):
            yield self.batch(x, y)

    def set_rate(self, amp: Amp, step: int) -> None:
        """Set the learning rate that the schedule has for ``step``, if there is a schedule."""
        rate = self.experiment.rate(step)
        if rate is not None:
            self.driver.set_rate(amp, rate)

    @property
    def step_options(self) -> dict[str, Any]:
        """What ``amp.step`` is told beside the batch."""
        return {
            "clip_norm": self.experiment.clip_norm,
            "micro_batches": self.experiment.micro_batches,
        }

    def predict(self, model: Any, amp: Amp, x: Arrays) -> Any:
        """Return the model's output in evaluation mode: examples first, classes last."""
        layout = self._target_layout
        return self.driver.predict(model, amp, x, self.data.layout, layout)

    @property
    def _target_layout(self) -> str:
        layout = self.data.target_layout
        if isinstance(layout, str):
            return layout
        if len(as_tuple(self.data.y_train)) > 1:
            msg = "`data.target_layout` must be one word where one output is asked for"
            raise ExperimentError(msg)
        return layout[0]


def example_of(setup: Setup) -> tuple[Any, tuple[Any, ...]]:
    """Return a new model, and what a first batch calls it with."""
    model, x = setup.model(), setup.data.x_train
    inputs = len(x) if isinstance(x, tuple) else 1
    return model, next(setup.batches(1))[:inputs]
