"""What MindSpore is asked and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer

from mpcore.backend.backend import Capabilities, Support, refuse_shared
from mpcore.backend.parts import InModule
from mpcore.errors import OptimizerError
from mpcore.numerics.master_weights import SCHEMES
from mpcore_mindspore.amp import MindsporeAmp
from mpcore_mindspore.ascend import EmulatedAscend
from mpcore_mindspore.casting import check_plan, native_of
from mpcore_mindspore.float32 import set_float32
from mpcore_mindspore.layers import list_layers
from mpcore_mindspore.stored_low import refuse_low

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.backend.callback import MakeCallback
    from mpcore.backend.differences import Differences
    from mpcore.backend.driver import Driver
    from mpcore.backend.foreteller import Foreteller
    from mpcore.backend.listener import Listener
    from mpcore.backend.modes import Modes
    from mpcore.backend.moves import Moves
    from mpcore.backend.probe import Probe
    from mpcore.backend.profiler import Profiler
    from mpcore.backend.rebuild import Rebuild
    from mpcore.graph.part import GraphPart
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import Plan
    from mpcore.step.transaction import StepOptions
    from mpcore.tools.inspection.observe import DryRun
    from mpcore.tools.inspection.recorder import Recorder

__all__ = ["MindsporeBackend"]

_NO_BFLOAT16 = (
    "mindspore on CPU has no bfloat16 kernels for MatMul, Conv2D, Softmax and most others"
)
_OP_RULES = "by primitive: rules for ops, not for layers or paths"


def _device() -> str:
    return str(ms.get_context("device_target"))


class MindsporeBackend:
    """MindSpore Cells. Run on CPU; on Ascend it was not run, no such device was at hand."""

    name = "mindspore"
    foreteller: InModule[Foreteller] = InModule("mpcore_mindspore.dry_run")
    dry_run: InModule[DryRun] = InModule("mpcore_mindspore.dry_run")
    modes: InModule[Modes[MindsporeAmp]] = InModule("mpcore_mindspore.modes")
    moves: InModule[Moves] = InModule("mpcore_mindspore.moves")
    profiler: InModule[Profiler] = InModule("mpcore_mindspore.profile")
    probe: InModule[Probe] = InModule("mpcore_mindspore.probe")
    differences: InModule[Differences] = InModule("mpcore_mindspore.differences")
    listener: InModule[Listener] = InModule("mpcore_mindspore.listener")
    rebuild: InModule[Rebuild] = InModule("mpcore_mindspore.rebuild")
    graph: InModule[GraphPart] = InModule("mpcore_mindspore.graph")
    recorder: InModule[Recorder] = InModule("mpcore_mindspore.recorder")

    def capabilities(self, model: nn.Cell | None = None, /) -> Capabilities:
        """Return what the process's device target can do."""
        device = _device()
        on_cpu = device == "CPU"
        register = device == "Ascend" or EmulatedAscend.active() is not None
        return Capabilities(
            backend=self.name,
            device=device,
            versions={"mindspore": ms.__version__, "numpy": np.__version__},
            mode="eager" if ms.get_context("mode") == ms.PYNATIVE_MODE else "graph",
            compute={
                "float16": Support("native", "emulated, not faster than float32" if on_cpu else ""),
                "bfloat16": Support("simulated", _NO_BFLOAT16) if on_cpu else Support("native"),
            },
            overflow="status_register" if register else "values",
            masters=tuple(SCHEMES),
            optimizer_state=("float32", "bfloat16"),
            by={"op": Support("native", _OP_RULES)}
            | {name: Support("native") for name in ("layer", "model", "graph")},
            rules={
                "op": ("op",),
                "layer": ("path", "layer", "op"),
                "model": ("path", "layer", "op"),
                "graph": ("path", "layer", "op"),
            },
            op_lists=("native", "portable"),
            stored=("float32", "bfloat16", "float16"),
            compiles_steps=True,
            compiles_updates=True,
            replans=True,
        )

    def layers(self, model: nn.Cell, /) -> list[Layer]:
        """Return the layer tree of ``model``."""
        return list_layers(model)

    def check_pair(self, model: nn.Cell, optimizer: nn.Optimizer, /) -> None:
        """Raise OptimizerError unless ``optimizer`` can train ``model`` on this device."""
        kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        if not isinstance(optimizer, nn.Optimizer | ExperimentalOptimizer):
            msg = f"`optimizer` must be a mindspore.nn.Optimizer for this model, got {kind}"
            raise OptimizerError(msg)
        homes = [cls.__module__ for cls in type(optimizer).__mro__]
        if _device() == "CPU" and any(home.startswith("mindspore.mint.") for home in homes):
            msg = (
                f"`optimizer` must change the weights, {kind} does not in eager mode on CPU "
                "(in-place operations are silent no-ops there); use mindspore.nn or "
                "mindspore.experimental.optim"
            )
            raise OptimizerError(msg)
        if getattr(optimizer, "loss_scale", 1.0) != 1.0:
            msg = (
                f"`optimizer` must have loss_scale=1.0, got {optimizer.loss_scale!r}: the "
                "gradients it receives are unscaled already"
            )
            raise OptimizerError(msg)
        own = {id(param) for param in model.get_parameters()}
        foreign = sum(id(param) not in own for param in optimizer.parameters)
        if foreign:
            msg = (
                f"`optimizer` must hold parameters of `model`: {foreign} of its "
                f"{len(optimizer.parameters)} tensors are not parameters of this "
                f"{type(model).__name__}; make the optimizer from model.trainable_params()"
            )
            raise OptimizerError(msg)

    def check_apart(self, optimizers: Mapping[str, Any], /) -> None:
        """Raise OptimizerError if two optimizers move the same Parameter."""
        refuse_shared(
            {name: ((id(p), p.name) for p in o.parameters) for name, o in optimizers.items()}
        )

    def attach(
        self,
        model: nn.Cell,
        optimizers: Mapping[str, Any],
        plan: Plan,
        options: StepOptions,
        /,
        *,
        simulated: bool,
    ) -> MindsporeAmp:
        """Apply ``plan`` in place and bind the optimizers.

        Raises:
            BackendError: prepared twice; a float16 LSTM in eager mode on CPU; 16-bit
                parameters that cannot be, or that came and cannot be widened or cast; something
                that cannot be guarded. Nothing was changed.
        """
        check_plan(model, plan, _device())
        native = native_of(self.capabilities(model))
        refuse_low(model, optimizers.values(), plan, native)
        amp = MindsporeAmp(model, optimizers, plan, native, options, simulated=simulated)
        set_float32(plan.policy, _device())
        return amp

    def driver(self) -> Driver[MindsporeAmp]:
        """Return what builds and trains an experiment's model, and reads and writes weights."""
        from mpcore_mindspore.driver import MindsporeDriver

        return MindsporeDriver()

    def callback(self) -> MakeCallback[MindsporeAmp]:
        """Return what makes a callback of ``Model.train``: ``amp`` itself reports its steps."""
        return lambda amp, _: amp.callback()
