"""Training under a policy beside float32: does it end as well as float32 does in another order?"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.layout import as_tuple, examples
from mpcore.errors import BackendError
from mpcore.preparation import prepare
from mpcore.tools.diagnosis.diagnose import diagnose
from mpcore.tools.experiment.experiment import OWN
from mpcore.tools.experiment.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["BAND", "ORDERS", "Trained", "Trainer", "within"]

ORDERS = 3
"""Orders of the data that float32 is trained in."""

BAND = 2.0
"""Standard deviations of float32's orders that a policy may end from float32."""

_FLOOR = 1e-3  # relative: the deviation of three numbers may be next to nothing by chance
_HELD_OUT = 512  # examples, at most
_SETTLES = 16  # first steps, in which a loss scale may come down


@dataclass(frozen=True)
class Trained:
    """One training run.

    Attributes:
        loss: at the end, under the policy that was trained.
        in_float32: of the same weights, evaluated in float32.
        first: loss of the first step.
        skipped: steps that the loss scale skipped after it had settled.
        rule: what diagnosis says would cure a skipped step; ``""`` for nothing.
        weights: at the end.
    """

    loss: float
    in_float32: float
    first: float
    skipped: int
    rule: str
    weights: list[LayerWeights]


class Trainer:
    """Trains an experiment under policies, from the same weights.

    Args:
        experiment: what is trained.
        name: of the builder.
        data: its data.
        steps: of each run.
        batch: examples a step.
        initial: weights that all start from.
        tell: called with what goes on.

    Attributes:
        held_out: whether the loss is that of test examples; else that of the last tenth of steps.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        data: Data,
        steps: int,
        batch: int,
        initial: list[LayerWeights],
        tell: Callable[..., None],
    ) -> None:
        self._experiment, self._name, self._data = experiment, name, data
        self._steps, self._batch, self._initial, self._tell = steps, batch, initial, tell
        count = len(as_tuple(data.x_test)[0])
        single = not isinstance(data.y_test, tuple)
        self.held_out = experiment.loss != OWN and count > 0 and single

    def train(self, policy: str, order: int = 0) -> Trained:
        """Return one run.

        Args:
            policy: that it runs under.
            order: of the data.
        """
        setup = Setup(self._experiment, self._name, self._data)
        model = setup.model()
        setup.driver.load_weights(model, self._initial)
        amp = prepare(model, setup.optimizer(model), policy)
        loss_fn = setup.loss(model)
        losses, skipped, rule = [], 0, ""
        for index, (x, y) in enumerate(self._data.batches(self._steps, self._batch, order)):
            setup.set_rate(amp, index)
            step = amp.step(loss_fn, *setup.batch(x, y), **setup.step_options)
            losses.append(step.loss)
            if not step.stepped and (index >= _SETTLES or not isfinite(step.loss)):
                skipped += 1
                rule = rule or _cure(amp)
            self._tell(phase="train", step=index + 1, of=self._steps, loss=step.loss)
        weights = setup.driver.weights(model, amp)
        last = fmean(losses[-max(1, len(losses) // 10) :])
        if not self.held_out:
            return Trained(last, last, losses[0], skipped, rule, weights)
        loss = self._test_loss(setup, model, amp)
        in_float32 = loss if policy == "float32" else self._in_float32(weights)
        return Trained(loss, in_float32, losses[0], skipped, rule, weights)

    def _in_float32(self, weights: list[LayerWeights]) -> float:
        setup = Setup(self._experiment, self._name, self._data)
        model = setup.model()
        setup.driver.load_weights(model, weights)
        amp = prepare(model, setup.optimizer(model), "float32")
        return self._test_loss(setup, model, amp)

    def _test_loss(self, setup: Setup, model: Any, amp: Any) -> float:
        count = min(_HELD_OUT, len(as_tuple(self._data.x_test)[0]))
        total = 0.0
        for start in range(0, count, self._batch):
            rows = slice(start, min(start + self._batch, count))
            output = setup.predict(model, amp, examples(self._data.x_test, rows))
            targets = np.asarray(examples(self._data.y_test, rows))
            total += len(targets) * self._loss_of(output, targets)
        return total / count

    def _loss_of(self, output: Any, targets: Any) -> float:
        values = np.asarray(output, np.float64)
        if self._experiment.loss == "mse":
            if values.shape != targets.shape and self._data.target_layout == "channels_first":
                targets = np.moveaxis(targets, 1, -1)
            return float(np.mean((values - targets.reshape(values.shape)) ** 2))
        shifted = values - values.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        chosen = np.take_along_axis(logs, targets[..., None].astype(np.int64), -1)
        return float(-chosen.mean())


def _cure(amp: Any) -> str:
    """Return the rule that diagnosis found for the latest step; ``""`` where there is none."""
    try:
        return diagnose(amp).rule or ""
    except BackendError:
        return ""


def within(loss: float, float32: list[float], tolerance: float | None) -> tuple[bool, float]:
    """Return whether a loss is as good as float32's, and the band around it.

    Args:
        loss: of the policy, in the order of ``float32[0]``.
        float32: its losses, one for each order of the data.
        tolerance: relative; None for two standard deviations of ``float32``.
    """
    size = abs(float32[0])
    band = size * tolerance if tolerance is not None else BAND * stdev(float32)
    band = max(band, _FLOOR * size if tolerance is None else 0.0)
    # Better than float32 is no harm.
    return isfinite(loss) and loss - float32[0] <= band, band if isfinite(band) else inf
