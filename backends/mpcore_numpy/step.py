"""The transaction in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.amp import Amp
from mpcore.dtypes import is_low, round_to
from mpcore.scaling import LossScale, ScaleState, initial_state, inverse, narrow
from mpcore.transaction import StepResult, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore.plan import Plan
    from mpcore_numpy.model import SGD, Adam, Model

    Arrays = dict[str, npt.NDArray[np.float32]]

__all__ = ["NumpyAmp"]


class _NumpyTransaction(Transaction):
    """The primitives, each as plain as it can be said."""

    def __init__(self, model: Model, optimizer: SGD | Adam, plan: Plan, rule: LossScale) -> None:
        self.model, self.optimizer, self.rule = model, optimizer, rule
        self.state = initial_state(rule)
        self._compute = {entry.path: entry.compute for entry in plan.layers}
        self._stored = {entry.path: entry.param for entry in plan.layers}
        self._keeps_truth = plan.policy.master == "copy" or plan.policy.by != "model"

    def cast(self, path: str, x: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return ``x`` rounded to the compute dtype of a layer; "follow" changes nothing."""
        dtype = self._compute[path]
        return np.asarray(x, np.float32) if dtype == "follow" else round_to(x, dtype)

    def stored(self) -> Arrays:
        """Return the parameters as the forward pass reads them."""
        return {
            name: self.cast(name.rpartition(".")[0], value)
            for name, value in self.model.params.items()
        }

    def scale_state(self) -> ScaleState:
        return self.state

    def begin(self) -> Arrays:
        return {name: buffer.copy() for name, buffer in self.model.buffers.items()}

    def differentiate(self, scale: float, *batch: Any) -> tuple[Any, Any]:
        loss_and_grads, *inputs = batch
        with np.errstate(all="ignore"):  # overflow is a result here, judged by all_finite
            loss, grads = loss_and_grads(
                self.stored(), self.model.buffers, self.cast, np.float32(scale), *inputs
            )
        return np.float32(loss), grads

    def unscale(self, grads: Arrays, scale: float) -> Arrays:
        factor = np.float32(inverse(scale))
        with np.errstate(all="ignore"):
            return {name: np.asarray(g, np.float32) * factor for name, g in grads.items()}

    def norms(self, grads: Arrays) -> npt.NDArray[np.float32]:
        with np.errstate(all="ignore"):
            return np.array([np.linalg.norm(g) for g in grads.values()], np.float32)

    def all_finite(self, grads: Arrays, norms: Any) -> bool:
        return all(bool(np.isfinite(g).all()) for g in grads.values())

    def clip(self, grads: Arrays, norms: npt.NDArray[np.float32], clip_norm: float) -> Arrays:
        factor = np.minimum(np.float32(1), clip_norm / (np.linalg.norm(norms) + np.float32(1e-6)))
        return {name: g * np.float32(factor) for name, g in grads.items()}

    def commit(self, finite: bool, grads: Arrays, saved: Arrays) -> None:
        if not finite:
            for name, buffer in saved.items():
                self.model.buffers[name][...] = buffer
            return
        self.optimizer.step(grads)
        if not self._keeps_truth:
            for name, value in self.model.params.items():
                dtype = self._stored[name.rpartition(".")[0]]
                if is_low(dtype):
                    value[...] = round_to(value, dtype)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return np.where(condition, x, y)

    def narrow(self, value: Any) -> float:
        return narrow(self.rule, float(value))

    def store(self, new: Any, done: None) -> float:
        scale, *counts = new
        self.state = ScaleState(float(scale), *(int(count) for count in counts))
        return float(scale)


class NumpyAmp(Amp):
    """A prepared numpy model.

    ``loss_fn(params, buffers, cast, scale, *batch)`` returns the loss and the gradients of
    loss times scale, by parameter name. ``params`` hold rounded copies; ``cast(path, x)``
    rounds an activation or gradient to the compute dtype of a layer.
    """

    def __init__(self, model: Model, optimizer: SGD | Adam, plan: Plan, *, simulated: bool) -> None:
        super().__init__(plan, simulated=simulated)
        self._tx = _NumpyTransaction(model, optimizer, plan, plan.policy.scaling)

    @property
    def state(self) -> ScaleState:
        """State of the loss scale."""
        return self._tx.state

    @state.setter
    def state(self, state: ScaleState) -> None:
        self._tx.state = ScaleState(*state)

    def _step(
        self,
        loss_fn: Callable[..., Any],
        *batch: Any,
        clip_norm: float | None,
        keep_grads: bool,
    ) -> StepResult:
        raw = self._tx.transact(clip_norm, loss_fn, *batch)
        return StepResult(raw[:5], list(raw[5]), np.asarray, raw[5] if keep_grads else None)
