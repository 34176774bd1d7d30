"""The reference in the conformance suite: a small network, its gradients written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.numerics.dtypes import round_to
from mpcore.scaling.transition import transition
from mpcore_numpy.model import SGD, Adam, Model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.scaling.loss_scale import LossScale
    from mpcore.scaling.transition import LossScaleState
    from mpcore.step.result import StepResult
    from mpcore_numpy.amp import NumpyAmp

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = ["NumpyKit", "dtype_of", "kit", "loss_and_gradients"]


def _initial() -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "fc1.weight": rng.normal(0, 0.3, (16, 8)).astype("f4"),
        "fc1.bias": rng.normal(0, 0.1, 16).astype("f4"),
        "bn.weight": np.ones(16, "f4"),
        "bn.bias": np.zeros(16, "f4"),
        "fc2.weight": rng.normal(0, 0.3, (4, 16)).astype("f4"),
        "fc2.bias": rng.normal(0, 0.1, 4).astype("f4"),
    }


def loss_and_gradients(
    params: Arrays,
    buffers: Arrays,
    cast: Callable[[str, Any], Any],
    scale: Any,
    x: Any,
    y: Any,
    boost: Any,
) -> tuple[Any, Arrays]:
    """Return the loss and the gradients of loss times ``scale``, as ``NumpyAmp.step`` wants.

    Args:
        params: rounded parameters.
        buffers: of the batch norm; changed.
        cast: rounds a value to the compute dtype of a layer.
        scale: of the loss, float32.
        x: inputs, (batch, 8).
        y: classes, (batch,).
        boost: factor on the loss.
    """
    one = np.float32(1)
    # forward: linear, batch norm over the batch, ReLU, linear, mean cross entropy
    x = cast("fc1", x)
    a = cast("fc1", x @ params["fc1.weight"].T + params["fc1.bias"])
    n = len(a)
    mean, var = a.mean(0), a.var(0)
    buffers["bn.running_mean"][...] = (
        np.float32(0.9) * buffers["bn.running_mean"] + np.float32(0.1) * mean
    )
    buffers["bn.running_var"][...] = np.float32(0.9) * buffers["bn.running_var"] + np.float32(
        0.1
    ) * var * np.float32(n / (n - 1))
    inv = one / np.sqrt(var + np.float32(1e-5))
    z = (a - mean) * inv
    h = np.maximum(params["bn.weight"] * z + params["bn.bias"], 0)
    h_low = cast("fc2", h)
    logits = cast("fc2", h_low @ params["fc2.weight"].T + params["fc2.bias"])
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -log_p[np.arange(n), y].mean() * boost
    # backward of loss * scale
    g = np.exp(log_p)
    g[np.arange(n), y] -= one
    g = cast("fc2", g * (scale * boost / np.float32(n)))
    grads = {"fc2.weight": cast("fc2", g.T @ h_low), "fc2.bias": cast("fc2", g.sum(0))}
    gh = cast("fc2", g @ params["fc2.weight"]) * (h > 0)
    grads["bn.weight"], grads["bn.bias"] = (gh * z).sum(0), gh.sum(0)
    gz = gh * params["bn.weight"]
    ga = cast("fc1", inv * (gz - gz.mean(0) - z * (gz * z).mean(0)))
    grads["fc1.weight"], grads["fc1.bias"] = cast("fc1", ga.T @ x), cast("fc1", ga.sum(0))
    return loss, {name: grads[name] for name in params}


def dtype_of(value: npt.NDArray[Any], planned: str) -> str:
    """Return the planned dtype if ``value`` is representable in it, else float32."""
    return planned if np.array_equal(round_to(value, planned), value) else "float32"


class NumpyKit:
    """Implements ``mpcore.backend.kit.Kit``."""

    name = "numpy"
    modes: tuple[str, ...] = ("eager",)
    differentiates = False
    changes_model = False
    optimizer_holds_parameters = True

    def model(self) -> Model:
        """Return the network, the same at each call."""
        layers = {"fc1": "linear", "bn": "norm", "act": "activation", "fc2": "linear"}
        buffers = {
            "bn.running_mean": np.zeros(16, "f4"),
            "bn.running_var": np.ones(16, "f4"),
        }
        return Model(layers, _initial(), buffers)

    def sgd(self, model: Model, learning_rate: float, momentum: float) -> SGD:
        """Return SGD over all parameters."""
        return SGD(model.params, learning_rate, momentum)

    def adam(self, model: Model, learning_rate: float) -> Adam:
        """Return Adam over all parameters."""
        return Adam(model.params, learning_rate)

    def loss_fn(self, model: Model) -> Callable[..., Any]:
        """Return the cross entropy and its gradients."""
        return loss_and_gradients

    def batch(self, x: npt.NDArray[Any], y: npt.NDArray[Any], boost: float) -> tuple[Any, ...]:
        """Return arrays."""
        return x, y, np.float32(boost)

    def stepper(
        self, amp: NumpyAmp, loss_fn: Any, mode: str, **call: Any
    ) -> Callable[..., StepResult]:
        """Return ``amp.step``."""
        return lambda *batch: amp.step(loss_fn, *batch, keep_grads=True, **call)

    def sgd_over(self, model: Model, layers: Sequence[str], learning_rate: float) -> SGD:
        """Return SGD over the parameters of some layers."""
        names = [name for name in model.params if name.partition(".")[0] in layers]
        return SGD(model.params, learning_rate, 0.9, names)

    def snapshot(self, model: Model, optimizer: Any, amp: NumpyAmp) -> Arrays:
        """Return copies of all arrays and counts."""
        taken = {**model.params, **model.buffers}
        for key, entry in amp.optimizers.items():
            for slot, values in entry.slots.items():
                taken |= {f"{key}:{slot}:{name}": value for name, value in values.items()}
            taken[f"{key}:steps"] = np.array(entry.steps)
        return {name: value.copy() for name, value in taken.items()}

    def layer_dtypes(self, model: Model, amp: NumpyAmp, x: npt.NDArray[Any]) -> dict[str, str]:
        """Return what each layer with weights casts to."""
        seen: dict[str, str] = {}
        tx = amp._tx

        def cast(path: str, value: Any) -> Any:
            found = tx.cast(path, value)
            seen[path] = dtype_of(found, tx._compute[path])
            return found

        loss_and_gradients(
            tx.stored(), dict(model.buffers), cast, np.float32(1), x, np.zeros(len(x), int), 1
        )
        return seen

    def transition(
        self, rule: LossScale, state: LossScaleState, finite: bool, mode: str
    ) -> tuple[float, ...]:
        """Run the transition on 0-d arrays."""
        tensors = (np.float32(state[0]), *(np.int32(count) for count in state[1:]))
        scale, *counts = transition(rule, tensors, np.bool_(finite), np.where, np.float32)
        return float(scale), *(int(count) for count in counts)

    def put_weights(self, model: Model, weights: list[LayerWeights]) -> None:
        """Put weights into parameters and buffers."""
        for layer in weights:
            for name, value in layer.arrays.items():
                path = f"{layer.path}.{name}"
                (model.params if path in model.params else model.buffers)[path][...] = value

    def gradients(self, model: Any, grads: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
        """Return the gradients as they are."""
        return dict(grads)


kit = NumpyKit()
