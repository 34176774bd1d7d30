"""What the numpy reference is asked and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.backend.backend import Capabilities, Support, refuse_shared
from mpcore.backend.parts import InModule
from mpcore.errors import OptimizerError
from mpcore.numerics.master_weights import SCHEMES
from mpcore.policy.layer import Layer, ParamInfo
from mpcore_numpy.amp import NumpyAmp
from mpcore_numpy.ascend import EmulatedAscend
from mpcore_numpy.model import SGD, Adam

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.backend.probe import Probe
    from mpcore.policy.plan import Plan
    from mpcore.step.transaction import StepOptions
    from mpcore_numpy.model import Model

__all__ = ["NumpyBackend"]

_ROUNDS = "numpy computes in float32 and rounds inputs, parameters and gradients"


class NumpyBackend:
    """The executable reference."""

    name = "numpy"
    probe: InModule[Probe] = InModule("mpcore_numpy.probe")

    def capabilities(self, model: Any = None, /) -> Capabilities:
        """Return what numpy can do: every 16-bit format by rounding."""
        return Capabilities(
            backend=self.name,
            device="cpu",
            versions={"numpy": np.__version__},
            compute={name: Support("simulated", _ROUNDS) for name in ("float16", "bfloat16")},
            overflow="values" if EmulatedAscend.active() is None else "status_register",
            by={
                "op": Support("absent", "the reference has layers, not an op dispatcher"),
                "layer": Support("native"),
                "model": Support("native"),
            },
            masters=tuple(SCHEMES),
            optimizer_state=("float32", "bfloat16"),
        )

    def layers(self, model: Model, /) -> list[Layer]:
        """Return the layers of ``model``, the model first."""
        params: dict[str, list[ParamInfo]] = {path: [] for path in model.layers}
        for name, value in model.params.items():
            path, _, short = name.rpartition(".")
            params[path].append(ParamInfo(short, value.shape, value.dtype.name))
        listed = [
            Layer(path, category, category, tuple(params[path]))
            for path, category in model.layers.items()
        ]
        return [Layer("", "container", "Model"), *listed]

    def check_pair(self, model: Model, optimizer: Any, /) -> None:
        """Raise OptimizerError unless ``optimizer`` is ours and holds the model's arrays."""
        if not isinstance(optimizer, SGD | Adam):
            msg = f"`optimizer` must be an mpcore_numpy optimizer, got {type(optimizer).__name__}"
            raise OptimizerError(msg)
        if optimizer.params is not model.params:
            msg = "`optimizer` must hold parameters of `model`; make it from model.params"
            raise OptimizerError(msg)

    def check_apart(self, optimizers: Mapping[str, SGD | Adam], /) -> None:
        """Raise OptimizerError if two optimizers move the same array."""
        refuse_shared({name: ((path, path) for path in o.names) for name, o in optimizers.items()})

    def attach(
        self,
        model: Model,
        optimizers: Mapping[str, SGD | Adam],
        plan: Plan,
        options: StepOptions,
        /,
        *,
        simulated: bool,
    ) -> NumpyAmp:
        """Bind the optimizers; nothing in the model changes."""
        return NumpyAmp(model, optimizers, plan, options, simulated=simulated)
