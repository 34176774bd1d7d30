"""One step under a policy against the same step in float64, in units of the noise of batches."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.parts import EXACT
from mpcore.errors import ExperimentError
from mpcore.preparation import prepare
from mpcore.tools.experiment.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from mpcore.backend.exact import Exact
    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.experiment.data import Data
    from mpcore.tools.experiment.experiment import Experiment

__all__ = ["LIMIT", "Screen"]

LIMIT = 0.5
"""Error of a gradient that trains as well, in units of what those of other batches differ by."""

_BATCHES = 3
_TRIES = 24  # steps in which a loss scale may settle


class Screen:
    """Judges policies by one step each, at the same weights and batches.

    Args:
        experiment: what is run.
        name: of the builder.
        data: its data.
        batch: examples a step; None for the experiment's.
        weights: where the steps start.

    Attributes:
        reference: what the truth was computed in.
        noise: root mean square distance of the batches' gradients from their mean.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        data: Data,
        batch: int | None,
        weights: list[LayerWeights],
    ) -> None:
        self._experiment, self._name, self._data, self._batch = experiment, name, data, batch
        self._arrays = list(data.batches(_BATCHES, batch or experiment.batch, 1))
        self._weights = weights
        self.reference, self._truth = self._exact()
        stack = [gradient for _, gradient in self._truth]
        mean = np.mean(stack, axis=0)
        self.noise = float(np.sqrt(sum(np.sum((g - mean) ** 2) for g in stack) / (len(stack) - 1)))
        self._size = float(np.sqrt(np.mean([np.sum(g**2) for g in stack])))
        self.floor = self._measure("float32")["rho"]

    def judge(self, policy: str) -> dict[str, Any]:
        """Return what one step on each batch says of a policy.

        ``rho`` is the error in units of the noise of batches, without what float32 itself has (as
        models do that draw random numbers); ``relative`` the same in units of the gradient;
        ``loss_off`` the difference of the loss; ``passed`` whether it may go on.
        """
        found = self._measure(policy)
        if found["rho"] < inf:
            found["rho"] = float(np.sqrt(max(0.0, found["rho"] ** 2 - self.floor**2)))
        return found | {"passed": found["rho"] < LIMIT}

    def error(self, policy: str) -> float:
        """Return the relative error of the gradient of one batch; inf where it is not finite."""
        return float(self._measure(policy, 1)["relative"])

    def _measure(self, policy: str, batches: int = _BATCHES) -> dict[str, Any]:
        errors, off, scale = [], [], 1.0
        for number, result in enumerate(self._steps(policy, batches)):
            if result is None:
                return {"rho": inf, "relative": inf, "loss_off": inf, "scale": 0.0}
            loss, gradient, scale = result
            truth_loss, truth = self._truth[number]
            errors.append(float(np.sum((gradient - truth) ** 2)))
            off.append(abs(loss - truth_loss))
        error = float(np.sqrt(np.mean(errors)))
        rho = error / self.noise if self.noise else (0.0 if error <= 1e-2 * self._size else inf)
        relative = error / self._size if self._size else rho
        finite = isfinite(error)
        return {
            "rho": rho if finite else inf,
            "relative": relative if finite else inf,
            "loss_off": float(max(off)),
            "scale": scale,
        }

    def _steps(self, policy: str, batches: int) -> Any:
        """Yield (loss, gradient, loss scale) of each batch; None where none is finite."""
        setup = Setup(self._experiment, self._name, self._data)
        model = setup.model()
        amp = prepare(model, setup.optimizer(model), policy)
        loss_fn = setup.loss(model)
        for arrays in self._arrays[:batches]:
            setup.driver.load_weights(model, self._weights, amp)
            batch = setup.batch(*arrays)
            for _ in range(_TRIES):
                step = amp.step(loss_fn, *batch, keep_grads=True)
                if step.stepped:
                    break
            else:
                yield None
                return
            yield step.loss, self._flat(setup.driver.gradients(model, step.grads)), step.scale

    def _flat(self, gradients: Sequence[LayerWeights]) -> npt.NDArray[np.float64]:
        """Return all gradients as one vector; zeros where the loss does not reach a parameter."""
        given = _by_name(gradients)
        parts = [
            np.asarray(given.get(key, np.zeros_like(a)), np.float64).ravel()
            for key, a in _by_name(self._weights).items()
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _exact(self) -> tuple[str, list[tuple[float, npt.NDArray[np.float64]]]]:
        """Return what the truth is computed in, and (loss, gradient) of each batch."""
        setup = Setup(self._experiment, self._name, self._data)
        exact = EXACT.find(setup.backend)
        if exact is not None:
            try:
                return "float64", _finite([self._exactly(exact, a) for a in self._arrays])
            except (RuntimeError, TypeError, ValueError):
                pass  # a model with float32 of its own inside cannot be widened
        steps = list(self._steps("float32", _BATCHES))
        return "float32", _finite([None if s is None else s[:2] for s in steps])

    def _exactly(self, exact: Exact, arrays: Any) -> tuple[float, npt.NDArray[np.float64]]:
        setup = Setup(self._experiment, self._name, self._data)
        model = setup.model()
        setup.driver.load_weights(model, self._weights)
        model, batch = exact.widened(model, setup.batch(*arrays))
        loss = setup.loss(model)(*batch)
        grads = exact.true_gradients(model, loss)
        return float(loss.tolist()), self._flat(setup.driver.gradients(model, grads))


def _finite(steps: list[Any]) -> list[tuple[float, npt.NDArray[np.float64]]]:
    if any(s is None or not isfinite(s[0]) or not np.isfinite(s[1]).all() for s in steps):
        msg = "the first batches have no finite loss and gradient in float32: nothing can be judged"
        raise ExperimentError(msg)
    return steps


def _by_name(gradients: Sequence[LayerWeights]) -> dict[tuple[str, str], Any]:
    return {(one.path, name): a for one in gradients for name, a in one.arrays.items()}
