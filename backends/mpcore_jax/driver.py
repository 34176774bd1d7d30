"""JAX's part in ``mpcore compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from mpcore.backend.layout import arranged, in_parts
from mpcore.checkpoint.layer_weights import LayerWeights, Slots
from mpcore.errors import BackendError
from mpcore_jax import layouts
from mpcore_jax.casting import cast
from mpcore_jax.loss_ops import JaxLossOps
from mpcore_jax.modules import layers, variables

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore.backend.driver import OptimizerSpec
    from mpcore.backend.files import Files
    from mpcore.backend.layout import Arrays, Layout
    from mpcore.checkpoint.places import Place
    from mpcore_jax.amp import JaxAmp

__all__ = ["JaxDriver"]

_SLOTS = {"trace": "momentum", "mu": "exp_avg", "nu": "exp_avg_sq"}
"""Neutral names of the fields of optax's states."""

_NO_FILES = "nnx has no file format of its own; use amp.save(path, weights=True), or orbax"


class JaxDriver:
    """Implements ``mpcore.backend.driver.Driver``."""

    @property
    def files(self) -> Files:
        """Refuse: nnx has no file of its own."""
        raise BackendError(_NO_FILES)

    @property
    def ops(self) -> JaxLossOps:
        """What a neutral loss is made of."""
        return JaxLossOps()

    def places(self, model: nnx.Module) -> list[dict[str, Place]]:
        """Refuse, as ``files``."""
        raise BackendError(_NO_FILES)

    def seed(self, seed: int) -> None:
        """Do nothing: random numbers of JAX come from keys that the builder makes."""

    def build(self, builder: Callable[[], Any], x: Arrays, layout: Layout) -> nnx.Module:
        """Return the model in training mode."""
        model: nnx.Module = builder()
        model.train()
        return model

    def batch(
        self, x: Arrays, y: Arrays, layout: Layout, target_layout: Layout = ""
    ) -> tuple[Any, ...]:
        """Return arrays, channels last; integers become int32."""
        return (*_inputs(x, layout), *_inputs(y, target_layout))

    def forward(self, model: nnx.Module) -> Callable[..., Any]:
        """Return what runs ``model``; floats that come out are float32."""
        return lambda *inputs: cast(model(*inputs), "float32")

    def loss(
        self, name: str, model: nnx.Module, *, label_smoothing: float = 0.0, layout: str = ""
    ) -> Callable[..., Any]:
        """Return the loss function that runs ``model``; classes are the last axis."""
        if name == "mse":
            return lambda *batch: jnp.mean(jnp.square(model(*batch[:-1]) - batch[-1]))
        ops = self.ops
        return lambda *batch: ops.cross_entropy(model(*batch[:-1]), batch[-1], label_smoothing)

    def optimizer(self, spec: OptimizerSpec, model: nnx.Module) -> nnx.Optimizer[Any]:
        """Return optax's own, with a learning rate that can be set."""
        return nnx.Optimizer(model, _transformation(spec), wrt=nnx.Param)

    def set_rate(self, amp: JaxAmp, rate: float) -> None:
        """Set the learning rate."""
        hyper = amp.optimizer.opt_state.hyperparams["learning_rate"]
        hyper.set_value(jnp.asarray(rate, jnp.float32))

    def trains(self, model: nnx.Module) -> dict[str, bool]:
        """Return by path, each parameter once, that it is trained."""
        return {n: True for n, v in variables(model).items() if isinstance(v, nnx.Param)}

    def weights(
        self, model: nnx.Module, amp: JaxAmp | None = None, *, view: bool = False
    ) -> list[LayerWeights]:
        """Return float32 copies of parameters (of their masters) and statistics."""
        return amp._read_layers() if amp is not None else layouts.read(layers(model), _plain(model))

    def load_weights(
        self, model: nnx.Module, weights: list[LayerWeights], amp: JaxAmp | None = None
    ) -> None:
        """Put ``weights`` into parameters, masters and statistics."""
        if amp is not None:
            amp._write_layers(weights)
            return
        held = variables(model)
        for name, value in layouts.write(layers(model), _plain(model), weights).items():
            held[name].set_value(jnp.array(value))

    def gradients(
        self, model: nnx.Module, grads: dict[str, Any], *, view: bool = False
    ) -> list[LayerWeights]:
        """Return gradients by layer."""
        return layouts.read(layers(model), grads)

    def slots(self, model: nnx.Module, amp: JaxAmp) -> Slots:
        """Return the momentum buffers or running averages."""
        values = {
            _SLOTS[field]: layouts.read(layers(model), arrays)
            for field, arrays in amp.slots().items()
            if field in _SLOTS
        }
        return Slots(int(amp.optimizer.step.get_raw_value()), values)

    def load_slots(self, model: nnx.Module, amp: JaxAmp, slots: Slots) -> None:
        """Put running averages back; an empty ``slots`` is a fresh optimizer."""
        arrays = {}
        for field, held in amp.slots().items():
            arrays[field] = {name: np.zeros_like(value) for name, value in held.items()}
            if (given := slots.values.get(_SLOTS.get(field, ""))) is not None:
                arrays[field] = layouts.write(layers(model), arrays[field], given)
        amp.load_slots(arrays, slots.steps)

    def predict(
        self, model: nnx.Module, amp: JaxAmp, x: Arrays, layout: Layout, target_layout: str = ""
    ) -> npt.NDArray[np.float32]:
        """Return the output in evaluation mode."""
        model.eval()
        found = in_parts(lambda rows: np.asarray(model(*_inputs(rows, layout)), np.float32), x)
        model.train()
        return found


def _inputs(arrays: Arrays, layout: Layout) -> list[Any]:
    return [
        jnp.asarray(a, jnp.int32 if a.dtype.kind in "iu" else jnp.float32)
        for a in arranged(arrays, layout, channels_last=True)
    ]


def _plain(model: nnx.Module) -> dict[str, npt.NDArray[np.float32]]:
    held = {name: v.get_raw_value() for name, v in variables(model).items()}
    return {n: np.asarray(v) for n, v in held.items() if jnp.issubdtype(v.dtype, jnp.floating)}


def _transformation(spec: OptimizerSpec) -> Any:
    """Return an optax transformation by neutral constants."""
    settings: dict[str, dict[str, Any]] = {
        "sgd": {"momentum": spec.momentum or None, "nesterov": spec.nesterov},
        "adam": {"b1": spec.betas[0], "b2": spec.betas[1], "eps": spec.eps},
    }
    settings["adamw"] = settings["adam"] | {"weight_decay": spec.weight_decay}
    if spec.name not in settings:
        msg = f"the jax backend builds {', '.join(settings)} for experiments, got {spec.name!r}"
        raise BackendError(msg)

    def made(learning_rate: Any) -> Any:
        own = getattr(optax, spec.name)(learning_rate, **settings[spec.name])
        coupled = spec.weight_decay and spec.name != "adamw"
        return optax.chain(optax.add_decayed_weights(spec.weight_decay), own) if coupled else own

    return optax.inject_hyperparams(made)(learning_rate=spec.learning_rate)
