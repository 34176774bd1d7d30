"""The prepared numpy model that people hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore._lib.interrupts import raise_late
from mpcore.amp.amp import Amp
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.errors import BackendError
from mpcore.scaling.transition import LossScaleState
from mpcore.step.result import StepResult, StepValues
from mpcore_numpy.step import NumpyTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from mpcore.policy.plan import Plan
    from mpcore.step.transaction import StepCall, StepOptions
    from mpcore_numpy.model import SGD, Adam, Model

    Arrays = dict[str, npt.NDArray[np.float32]]

__all__ = ["NumpyAmp"]


class NumpyAmp(Amp):
    """A prepared numpy model.

    ``loss_fn(params, buffers, cast, scale, *batch)`` returns the loss and the gradients of
    loss times scale, by parameter name. ``params`` hold rounded copies; ``cast(path, x)``
    rounds an activation or gradient to the compute dtype of a layer.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Mapping[str, SGD | Adam],
        plan: Plan,
        options: StepOptions,
        *,
        simulated: bool,
    ) -> None:
        super().__init__(plan, optimizers, simulated=simulated)
        self._tx = NumpyTransaction(model, optimizers, plan, options)
        self._tx.hold = self.held.now
        self._released = False
        self._trained: tuple[str, ...] = ()

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale."""
        return self._tx.state

    @state.setter
    def state(self, state: LossScaleState) -> None:
        self._tx.state = LossScaleState(*state)

    @property
    def optimizer_steps(self) -> int:
        """Real steps so far."""
        return self._tx.masters.steps

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        self._tx.masters.steps = steps

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return self._released

    def release(self) -> None:
        """End this object; the model's arrays hold the float32 truth again."""
        if not self._released:
            self._write_truth()
        self._released = True

    def _write_truth(self) -> None:
        for name, value in self._tx.model.params.items():
            value[...] = self._tx.masters.truth(name)

    def _read_weights(self) -> Arrays:
        model, masters = self._tx.model, self._tx.masters
        if self._released:
            return {name: value.copy() for name, value in (model.params | model.buffers).items()}
        truth = {name: masters.saved(name) for name in model.params}
        return truth | {name: value.copy() for name, value in model.buffers.items()}

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        for name, value in weights.items():
            if name in self._tx.model.params and not self._released:
                self._tx.masters.put(name, value)
            else:
                (self._tx.model.params | self._tx.model.buffers)[name][...] = value

    def _master_shapes(self, *, every: bool = False) -> dict[str, tuple[int, ...]]:
        # The model's own arrays only show the 16-bit values: whoever saves them has no part.
        params, parts = self._tx.model.params, self._tx.masters.parts
        return {name: value.shape for name, value in params.items() if every or name in parts}

    def _read_layers(self) -> list[LayerWeights]:
        truth = self._read_weights()
        return [
            LayerWeights(path, category, _inside(truth, path))
            for path, category in self._tx.model.layers.items()
            if _inside(truth, path)
        ]

    def _write_layers(self, weights: list[LayerWeights]) -> None:
        named = {f"{w.path}.{name}": array for w in weights for name, array in w.arrays.items()}
        self._write_weights(named)

    @property
    def _trained_model(self) -> Model:
        return self._tx.model

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes of the stored form, by kind; see ``Amp.array_bytes``."""
        return self._tx.masters.array_bytes(self.optimizers.values(), self._trained)

    def gradient(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Refuse: the reference has no automatic differentiation."""
        msg = "the numpy reference cannot differentiate; write the penalty's gradient yourself"
        raise BackendError(msg)

    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        if self._released:
            msg = "`step` must not be called after `release`: prepare the model again"
            raise BackendError(msg)
        self._tx.taking = [self.optimizers[name] for name in call.optimizers]
        before, state = self._tx.save_buffers(), self._tx.state
        try:
            with np.errstate(all="ignore"):  # overflow is a result here, judged by all_finite
                *values, grads = self._tx.transact(call, loss_fn, *batch)
        except BaseException:
            if self._tx.state is state:  # the commit ends with a new one
                self._tx.restore(before)
            raise
        kept = grads if call.keep_grads else None
        self._trained = tuple(grads)
        done = StepValues(*values)._replace(lost=self._tx.lost)
        result = StepResult(done, list(grads), np.asarray, kept, call.optimizers)
        if self._tx.late:
            self._done(result)
            raise_late(self._tx.late)
        return result


def _inside(arrays: Arrays, path: str) -> Arrays:
    """Return the arrays of one layer by their short names."""
    return {
        name.rpartition(".")[2]: array
        for name, array in arrays.items()
        if name.rpartition(".")[0] == path
    }
