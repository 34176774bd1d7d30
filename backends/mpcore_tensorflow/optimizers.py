"""Keras's optimizers by their neutral constants, and what their states are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from mpcore.errors import ExperimentError

if TYPE_CHECKING:
    from mpcore.backend.driver import OptimizerSpec

__all__ = ["optimizer_of", "slot_lists"]


def optimizer_of(spec: OptimizerSpec) -> Any:
    """Return Keras's own optimizer."""
    kind, settings = _kind(spec)
    if spec.name in ("adam", "adamw"):
        kind = _eps_behind_correction(kind)
    if spec.weight_decay and spec.name != "adamw":
        # Keras takes every decay off the weight; the others add it to the gradient.
        return _added_decay(kind)(spec.weight_decay, spec.learning_rate, **settings)
    return kind(spec.learning_rate, **settings)


def _kind(spec: OptimizerSpec) -> tuple[Any, dict[str, Any]]:
    betas = {"beta_1": spec.betas[0], "beta_2": spec.betas[1], "epsilon": spec.eps}
    if spec.name == "sgd":
        return keras.optimizers.SGD, {"momentum": spec.momentum, "nesterov": spec.nesterov}
    if spec.name == "adamw":
        return keras.optimizers.AdamW, {**betas, "weight_decay": spec.weight_decay}
    if spec.name == "adamax":
        return keras.optimizers.Adamax, betas
    if spec.name == "adagrad":
        return keras.optimizers.Adagrad, {"epsilon": spec.eps, "initial_accumulator_value": 0.1}
    if spec.name == "rmsprop":
        # Under the root, not beside it: its square is the same for gradients above and below.
        settings = {"rho": spec.betas[1], "momentum": spec.momentum, "epsilon": spec.eps**2}
        return keras.optimizers.RMSprop, settings
    return keras.optimizers.Adam, betas


def _eps_behind_correction(kind: Any) -> Any:
    """Return an Adam that adds eps to the corrected root, as torch does.

    Keras adds it before: the same eps is larger there by 1 / sqrt(1 - beta_2**step).
    """

    class Placed(kind):  # type: ignore[misc]  # a class that is chosen
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            eps: Any = getattr(self, "epsilon")  # noqa: B009  # its class is chosen above
            # In float32: in bfloat16 0.999 is 1.
            step = keras.ops.cast(self.iterations + 1, "float32")
            left = keras.ops.sqrt(1 - keras.ops.power(keras.ops.cast(self.beta_2, "float32"), step))
            self.epsilon = keras.ops.cast(eps * left, variable.dtype)
            try:
                super().update_step(gradient, variable, learning_rate)
            finally:
                self.epsilon = eps

    Placed.__name__ = kind.__name__
    return Placed


def _added_decay(kind: Any) -> Any:
    """Return an optimizer that adds the weight, times a decay, to its gradient."""

    class Decayed(kind):  # type: ignore[misc]  # a class that is chosen
        def __init__(self, decay: float, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._added = decay

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            gradient = gradient + self._added * keras.ops.cast(variable, gradient.dtype)
            super().update_step(gradient, variable, learning_rate)

    Decayed.__name__ = kind.__name__
    return Decayed


def slot_lists(optimizer: Any) -> dict[str, tuple[list[Any], float]]:
    """Return Keras's slots by neutral name, and what a neutral value is multiplied by."""
    if isinstance(optimizer, keras.optimizers.SGD):
        # It holds velocity = -learning_rate * buffer.
        rate = float(optimizer.learning_rate.numpy())
        return {"momentum": (optimizer.momentums, -rate)} if optimizer.momentum else {}
    if isinstance(optimizer, keras.optimizers.Adam):
        return {"exp_avg": (optimizer._momentums, 1.0), "exp_avg_sq": (optimizer._velocities, 1.0)}
    if isinstance(optimizer, keras.optimizers.Adamax):
        return {"exp_avg": (optimizer._m, 1.0), "exp_inf": (optimizer._u, 1.0)}
    if isinstance(optimizer, keras.optimizers.Adagrad):
        return {"square_sum": (optimizer._accumulators, 1.0)}
    if isinstance(optimizer, keras.optimizers.RMSprop):
        found = {"square_avg": (optimizer._velocities, 1.0)}
        if optimizer.momentum:
            rate = float(optimizer.learning_rate.numpy())
            found["momentum"] = (optimizer._momentums, rate)
        return found
    msg = (
        "`optimizer` must be one of Keras's SGD, Adam, AdamW, Adamax, Adagrad and RMSprop to be "
        f"compared, got {type(optimizer).__name__}"
    )
    raise ExperimentError(msg)
