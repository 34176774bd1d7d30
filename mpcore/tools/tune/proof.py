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

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["BAND", "ORDERS", "Trained", "Trainer", "falls", "off", "within"]

ORDERS = 3
"""Orders of the data that float32 is trained in."""

BAND = 2.0
"""Standard deviations of float32's orders that a policy may end from float32."""

_OFF = 0.1  # of the scatter of examples: nets that evaluate well are at 0.005 to 0.02
_REPEATS = 3.0  # an evaluation that draws random numbers is off by that from itself
_TELLS = 8  # steps from which on their noise can be told
_NORMAL = 0.954  # median distance of two normal numbers, in standard deviations of one
_FALL = 1.64  # standard errors of steps, by which a loss must fall: one flat loss in twenty does
_FLOOR = 1e-3  # relative: the deviation of three numbers may be next to nothing by chance
_HELD_OUT = 512  # examples, at most
_SETTLES = 16  # first steps, in which a loss scale may come down


@dataclass(frozen=True)
class Trained:
    """One training run.

    Attributes:
        loss: at the end, under the policy that was trained.
        in_float32: of the same weights, evaluated in float32.
        evaluates: whether the policy gives the loss of single examples as float32 does.
        first: loss of the first step.
        last: mean loss of the last tenth of the steps.
        falls: whether the loss of the steps falls by more than its noise.
        skipped: steps that the loss scale skipped after it had settled.
        rule: what diagnosis says would cure a skipped step; ``""`` for nothing.
        weights: at the end.
    """

    loss: float
    in_float32: float
    evaluates: bool
    first: float
    last: float
    falls: bool
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
        loss = in_float32 = last = fmean(losses[-max(1, len(losses) // 10) :])
        evaluates = True
        if self.held_out:
            under = self._test_losses(setup, model, amp)
            exact = under if policy == "float32" else self._in_float32(weights)
            loss, in_float32 = float(under.mean()), float(exact.mean())
            apart = off(under, exact)
            evaluates = apart <= _OFF
            if not evaluates:
                evaluates = apart <= _REPEATS * off(self._in_float32(weights, again=True), exact)
        return Trained(
            loss, in_float32, evaluates, losses[0], last, falls(losses), skipped, rule, weights
        )

    def _in_float32(
        self, weights: list[LayerWeights], *, again: bool = False
    ) -> npt.NDArray[np.float64]:
        """Return the loss of each test example; ``again`` after random numbers were drawn."""
        setup = Setup(self._experiment, self._name, self._data)
        model = setup.model()
        setup.driver.load_weights(model, weights)
        amp = prepare(model, setup.optimizer(model), "float32")
        if again:
            self._test_losses(setup, model, amp)
        return self._test_losses(setup, model, amp)

    def _test_losses(self, setup: Setup, model: Any, amp: Any) -> npt.NDArray[np.float64]:
        """Return the loss of each test example."""
        count = min(_HELD_OUT, len(as_tuple(self._data.x_test)[0]))
        found = []
        for start in range(0, count, self._batch):
            rows = slice(start, min(start + self._batch, count))
            output = setup.predict(model, amp, examples(self._data.x_test, rows))
            found.append(self._losses_of(output, np.asarray(examples(self._data.y_test, rows))))
        return np.concatenate(found)

    def _losses_of(self, output: Any, targets: Any) -> npt.NDArray[np.float64]:
        values = np.asarray(output, np.float64)
        if self._experiment.loss == "mse":
            if values.shape != targets.shape and self._data.target_layout == "channels_first":
                targets = np.moveaxis(targets, 1, -1)
            squares = (values - targets.reshape(values.shape)) ** 2
            return _of_examples(squares)
        shifted = values - values.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        chosen = np.take_along_axis(logs, targets[..., None].astype(np.int64), -1)
        return _of_examples(-chosen)


def _of_examples(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = values.reshape(len(values), -1).mean(1)
    return found


def _cure(amp: Any) -> str:
    """Return the rule that diagnosis found for the latest step; ``""`` where there is none."""
    try:
        return diagnose(amp).rule or ""
    except BackendError:
        return ""


def within(
    losses: list[float], float32: list[float], tolerance: float | None
) -> tuple[bool, float]:
    """Return whether losses are as good as float32's on the mean, and the band around those.

    Args:
        losses: of the policy, in the first orders of ``float32``.
        float32: its losses, one for each order of the data.
        tolerance: relative; None for two standard deviations of ``float32``.
    """
    size = abs(float32[0])
    band = size * tolerance if tolerance is not None else BAND * stdev(float32)
    band = max(band, _FLOOR * size if tolerance is None else 0.0)
    # Better than float32 is no harm.
    rise = fmean(losses) - fmean(float32[: len(losses)])
    return isfinite(rise) and rise <= band, band if isfinite(band) else inf


def off(losses: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]) -> float:
    """Return how far losses of examples are from exact ones, over the scatter of those.

    The mean hides it: what is off by chance, example by example, may even end lower.
    """
    distance = float(np.sqrt(np.mean((losses - exact) ** 2)))
    if not distance:
        return 0.0
    ratio = distance / float(exact.std() or abs(exact.mean()) or distance)
    return ratio if isfinite(ratio) else inf


def falls(losses: list[float]) -> bool:
    """Return whether a loss falls from the first half of its steps to the second, beyond noise.

    The noise is that of neighbours, so that the fall itself is no part of it.
    """
    values = np.asarray(losses, np.float64)
    half = len(values) // 2
    if not half or not np.isfinite(values[-half:]).all():
        return False
    values = values[np.isfinite(values)]  # a first step may overflow
    noise = 0.0 if len(values) < _TELLS else float(np.median(np.abs(np.diff(values)))) / _NORMAL
    return bool(values[:half].mean() - values[-half:].mean() > _FALL * noise * np.sqrt(2 / half))
