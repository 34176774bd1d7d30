"""What JAX is asked and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flax
import jax
import optax
from flax import nnx

from mpcore.backend.backend import Capabilities, Support
from mpcore.backend.parts import InModule
from mpcore.errors import OptimizerError
from mpcore_jax.amp import JaxAmp
from mpcore_jax.modules import list_layers, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.backend.differences import Differences
    from mpcore.backend.driver import Driver
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import Plan
    from mpcore.step.transaction import StepOptions

__all__ = ["JaxBackend"]


class JaxBackend:
    """flax nnx on the devices of XLA. Only its CPU was at hand; GPU and TPU were not run."""

    name = "jax"
    differences: InModule[Differences] = InModule("mpcore_jax.differences")

    def capabilities(self, model: Any = None, /) -> Capabilities:
        """Return what the device of ``model`` can do."""
        device = _device(model)
        slow = "XLA's CPU kernels compute many float16 operations in float32 and round"
        return Capabilities(
            backend=self.name,
            device=f"{device.platform}:{device.id}" if device.platform != "cpu" else "cpu",
            versions={m.__name__: m.__version__ for m in (jax, flax, optax)},
            compute={
                "float16": Support("native", slow if device.platform == "cpu" else ""),
                "bfloat16": Support("native"),
            },
            by={
                "op": Support("absent", "a trace holds no list of ops that are cast"),
                "layer": Support("native"),
                "model": Support("native"),
            },
            masters=("none", "copy"),
        )

    def layers(self, model: nnx.Module, /) -> list[Layer]:
        """Return every layer in the order of definition."""
        return list_layers(model)

    def check_pair(self, model: nnx.Module, optimizer: Any, /) -> None:
        """Refuse what is no nnx.Optimizer, or has the parameters of another model."""
        if not (_is_optimizer(optimizer) and type(optimizer).update is nnx.Optimizer.update):
            more = ""
            if isinstance(optimizer, optax.GradientTransformation):
                more = ": wrap it, nnx.Optimizer(model, tx, wrt=nnx.Param)"
            elif isinstance(optimizer, nnx.ModelAndOptimizer):
                more = ": make it without the model, nnx.Optimizer(model, tx, wrt=nnx.Param)"
            elif _is_optimizer(optimizer):
                more = " with an `update` of its own, which a step cannot run"
            msg = f"`optimizer` must be a flax.nnx.Optimizer, got {type(optimizer).__name__}{more}"
            raise OptimizerError(msg)
        if not jax.tree.leaves(nnx.state(model, optimizer.wrt)):
            msg = "`optimizer` must hold parameters of `model`: its `wrt` selects none of them"
            raise OptimizerError(msg)
        made = jax.eval_shape(optimizer.tx.init, nnx.as_pure(nnx.state(model, optimizer.wrt)))
        if _shapes(made) != _shapes(nnx.as_pure(optimizer.opt_state)):
            msg = (
                "`optimizer` must hold parameters of `model`: its state has other names or shapes; "
                "make it from this model, nnx.Optimizer(model, tx, wrt=nnx.Param)"
            )
            raise OptimizerError(msg)

    def check_apart(self, optimizers: Mapping[str, Any], /) -> None:
        """Leave it to ``attach``: an optimizer selects its parameters from a model."""

    def attach(
        self,
        model: nnx.Module,
        optimizers: Mapping[str, nnx.Optimizer[Any]],
        plan: Plan,
        options: StepOptions,
        /,
        *,
        simulated: bool,
    ) -> JaxAmp:
        """Apply the plan and return the prepared model."""
        return JaxAmp(model, optimizers, plan, options, simulated=simulated)

    def driver(self) -> Driver[JaxAmp]:
        """Return what runs an experiment."""
        from mpcore_jax.driver import JaxDriver

        return JaxDriver()


def _is_optimizer(optimizer: Any) -> bool:
    return isinstance(optimizer, nnx.Optimizer)


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [tuple(leaf.shape) for leaf in leaves]


def _device(model: Any) -> Any:
    if model is not None:
        for variable in variables(model).values():
            value = variable.get_raw_value()
            if isinstance(value, jax.Array):
                return sorted(value.devices(), key=lambda device: device.id)[0]
    return jax.devices()[0]
