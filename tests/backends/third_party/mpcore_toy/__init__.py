"""A whole backend outside of mpcore: the required part, and a kit for the conformance suite.

Its models are dicts of numpy arrays, its loss functions return their gradients; everything is
computed in float32, and 16-bit dtypes are simulated by rounding. docs/backend.md walks through it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpcore import BackendError, Capabilities, Layer, OptimizerError, OverflowDetector, ParamInfo
from mpcore.amp.amp import Amp
from mpcore.backend.backend import Support
from mpcore.numerics.dtypes import round_to
from mpcore.scaling.transition import LossScaleState, initial_state, inverse, narrow
from mpcore.step.result import StepResult, StepValues
from mpcore.step.transaction import Transaction
from mpcore_numpy import SGD, Adam
from mpcore_numpy import Model as NumpyModel


class Model(NumpyModel):
    """What a user trains: ``params`` and ``buffers`` by path, ``layers`` by path and category."""


class ToyBackend:
    """What ``mp.prepare`` asks."""

    name = "toy"

    def capabilities(self, model: Any = None, /) -> Capabilities:
        return Capabilities(
            backend=self.name,
            device="cpu",
            versions={"numpy": np.__version__},
            compute={d: Support("simulated", "rounded") for d in ("float16", "bfloat16")},
            by={
                "op": Support("absent", "it does not see single ops"),
                "layer": Support("native"),
                "model": Support("native"),
            },
            masters=("none", "copy"),
        )

    def layers(self, model: Model, /) -> list[Layer]:
        found = [Layer("", "container", "Model")]
        for path, category in model.layers.items():
            params = [
                ParamInfo(name.rpartition(".")[2], value.shape, value.dtype.name)
                for name, value in model.params.items()
                if name.rpartition(".")[0] == path
            ]
            found.append(Layer(path, category, category, tuple(params)))
        return found

    def check_pair(self, model: Model, optimizer: Any, /) -> None:
        if not isinstance(optimizer, SGD | Adam):
            msg = f"`optimizer` must be SGD or Adam, got {type(optimizer).__name__}"
            raise OptimizerError(msg)
        if optimizer.params is not model.params:
            msg = "`optimizer` must hold parameters of `model`; make it from model.params"
            raise OptimizerError(msg)

    def check_apart(self, optimizers: dict[str, Any], /) -> None:
        if len(optimizers) > 1:
            msg = f"`optimizer` must be one in this backend, got {len(optimizers)}"
            raise OptimizerError(msg)

    def attach(self, model, optimizers, plan, options, /, *, simulated: bool) -> ToyAmp:
        if options.restore_on_skip:
            msg = "`restore_on_skip` is not possible in this backend, it restores its buffers alone"
            raise BackendError(msg)
        return ToyAmp(model, optimizers, plan, options, simulated=simulated)


class ToyAmp(Amp):
    """What ``mp.prepare`` returns."""

    def __init__(self, model, optimizers, plan, options, *, simulated: bool) -> None:
        super().__init__(plan, optimizers, simulated=simulated)
        self.model = model
        (optimizer,) = optimizers.values()
        self._tx = ToyTransaction(model, optimizer, plan, options)

    @property
    def state(self) -> LossScaleState:
        return self._tx.state

    @state.setter
    def state(self, state: LossScaleState) -> None:
        self._tx.state = LossScaleState(*state)

    def _step(self, loss_fn, batch, call) -> StepResult:
        with np.errstate(all="ignore"):  # an overflow is a result, judged by all_finite
            *values, grads = self._tx.transact(call, loss_fn, *batch)
        kept = grads if call.keep_grads else None
        return StepResult(StepValues(*values), list(grads), np.asarray, kept, call.optimizers)

    def release(self) -> None:
        """Nothing in the model was changed, and its parameters are the fp32 master values."""

    def gradient(self, function, *inputs: Any) -> Any:
        msg = "this backend does not differentiate"
        raise BackendError(msg)


class ToyTransaction(Transaction):
    """The primitives of a step; their order is the core's."""

    has_register = False  # an overflow shows in the values alone

    def __init__(self, model: Model, optimizer: SGD | Adam, plan, options) -> None:
        self.model, self.optimizer, self.after_step = model, optimizer, options.after_step
        self.rule, self.detector = plan.policy.scaling, OverflowDetector()
        self.drops = options.on_bad_micro_batch == "drop"
        self.state = initial_state(self.rule)
        self.compute = {entry.path: entry.compute for entry in plan.layers}
        # Without master weights the parameters themselves are 16 bits wide.
        narrow_params = plan.policy.scheme.name == "none"
        self.stored = {e.path: e.param if narrow_params else "float32" for e in plan.layers}
        self._store_params()

    def cast(self, path: str, value: Any) -> np.ndarray:
        """Return a value in the compute dtype of a layer."""
        dtype = self.compute[path]
        return np.asarray(value, "f4") if dtype == "follow" else round_to(value, dtype)

    def _store_params(self) -> None:
        for name, value in self.model.params.items():
            dtype = self.stored[name.rpartition(".")[0]]
            if dtype not in ("", "float32"):
                value[...] = round_to(value, dtype)

    def begin(self) -> tuple[LossScaleState, list[np.ndarray]]:
        return self.state, self.save_buffers()

    def differentiate(self, scale: float, index: int, count: int, loss_fn, *batch: Any):
        params = {n: self.cast(n.rpartition(".")[0], v) for n, v in self.model.params.items()}
        rows = [np.split(b, count)[index] if np.ndim(b) else b for b in batch]
        loss, grads = loss_fn(params, self.model.buffers, self.cast, np.float32(scale), *rows)
        return np.float32(loss), grads

    def unscale(self, grads, scale: float):
        factor = np.float32(inverse(float(scale)))
        true = {name: np.asarray(grad, "f4") * factor for name, grad in grads.items()}
        norms = np.array([np.linalg.norm(grad) for grad in true.values()], "f4")
        return true, norms, (all_finite(true),)

    def total_norms(self, grads, norms):
        return (np.array([np.linalg.norm(norms)], "f4"),)

    def multiply(self, grads, factors):
        return {name: grad * np.float32(factors[0].item()) for name, grad in grads.items()}

    def commit(self, stepped, finite: bool, grads, saved, new) -> float:
        if finite:
            self.optimizer.step(grads)
            self._store_params()
            for follow in self.after_step:
                follow()
        else:
            self._restore(saved)
        scale, *counts = new
        self.state = LossScaleState(float(scale), *(int(count) for count in counts))
        return float(scale)

    def where(self, condition, x, y):
        return np.where(condition, x, y)

    def narrow(self, value) -> float:
        return narrow(self.rule, float(value))

    # Micro-batches.

    def save_buffers(self) -> list[np.ndarray]:
        return [value.copy() for value in self.model.buffers.values()]

    def _restore(self, saved: list[np.ndarray]) -> None:
        for buffer, before in zip(self.model.buffers.values(), saved, strict=True):
            buffer[...] = before

    def check_part(self, grads, before) -> bool:
        clean = all_finite(grads)
        if not clean:
            self._restore(before)
        return clean

    def fold(self, clean, sums, loss, grads):
        if sums is None:
            keep = np.float32(1 if clean else 0)
            return loss, grads if clean else {n: np.zeros_like(g) for n, g in grads.items()}, keep
        if clean is False:
            return sums
        total, summed, count = sums
        total = total if count else np.float32(0)
        added = {name: summed[name] + grad for name, grad in grads.items()}
        return total + loss, added, count if clean is None else count + 1


def all_finite(grads) -> bool:
    return all(bool(np.isfinite(grad).all()) for grad in grads.values())
