"""What torch is asked and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore.backend.backend import Capabilities, Support, refuse_shared
from mpcore.backend.parts import InModule
from mpcore.errors import OptimizerError
from mpcore_torch.amp import TorchAmp
from mpcore_torch.layers import device_of, list_layers, parameter_names
from mpcore_torch.overflow import overflow_kind
from mpcore_torch.refuse import refuse_prepared
from mpcore_torch.wrapped import refuse_wrapped, unwrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from mpcore.backend.calls import CallsOf
    from mpcore.backend.driver import Driver
    from mpcore.backend.exact import Exact
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

__all__ = ["TorchBackend"]


class TorchBackend:
    """PyTorch on CPU and CUDA; of CUDA the device suite was run on an H200, torch 2.11.0."""

    name = "torch"
    modes: InModule[Modes[TorchAmp]] = InModule("mpcore_torch.modes")
    moves: InModule[Moves] = InModule("mpcore_torch.moves")
    graph: InModule[GraphPart] = InModule("mpcore_torch.graph")
    exact: InModule[Exact] = InModule("mpcore_torch.exact")
    profiler: InModule[Profiler] = InModule("mpcore_torch.profile")
    probe: InModule[Probe] = InModule("mpcore_torch.probe")
    listener: InModule[Listener] = InModule("mpcore_torch.listener")
    rebuild: InModule[Rebuild] = InModule("mpcore_torch.rebuild")
    recorder: InModule[Recorder] = InModule("mpcore_torch.recorder")
    foreteller: InModule[Foreteller] = InModule("mpcore_torch.foreteller")
    dry_run: InModule[DryRun] = InModule("mpcore_torch.dry_run")

    def __init__(self) -> None:
        """Know no model yet."""
        self._names: dict[nn.Parameter, str] = {}

    def capabilities(self, model: Any = None, /) -> Capabilities:
        """Return what the device of ``model`` can do."""
        home = device_of(model)
        device = str(home)
        slow = "native kernels; convolutions are slow without avx512_fp16"
        return Capabilities(
            backend=self.name,
            device=device,
            versions={"torch": torch.__version__},
            compute={
                "float16": Support("native", slow if device == "cpu" else ""),
                "bfloat16": Support("native"),
            },
            overflow=overflow_kind(home.type),
            masters=("none", "copy", "split", "kahan", "stochastic"),
            optimizer_state=("float32", "bfloat16"),
            compiles_updates=True,
            by={name: Support("native") for name in ("op", "layer", "model", "graph")},
            rules={
                "op": ("path", "layer", "op"),
                "layer": ("path", "layer", "op"),
                "model": ("path", "layer", "op"),
                "graph": ("path", "layer", "op"),
            },
            op_lists=("native", "portable"),
            stored=("float32", "bfloat16", "float16"),
            replans=True,
        )

    def layers(self, model: nn.Module, /) -> list[Layer]:
        """Return the layer tree of ``model``."""
        return list_layers(model)

    def check_pair(self, model: nn.Module, optimizer: Any, /) -> None:
        """Raise OptimizerError unless ``optimizer`` is torch's, over parameters of ``model``."""
        refuse_prepared(model)
        optimizer = unwrapped(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            msg = (
                "`optimizer` must take one gradient a step, got LBFGS, which evaluates the loss "
                "several times inside a step; use SGD, Adam, AdamW or the like"
            )
            raise OptimizerError(msg)
        own = self._names = parameter_names(model)
        given = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = sum(param not in own for param in given)
        if foreign:
            msg = (
                f"`optimizer` must hold parameters of `model`: {foreign} of its {len(given)} "
                f"tensors are not parameters of this {type(model).__name__}; "
                "make the optimizer from model.parameters()"
            )
            raise OptimizerError(msg)

    def check_apart(self, optimizers: Mapping[str, torch.optim.Optimizer], /) -> None:
        """Raise OptimizerError if two optimizers hold the same parameter.

        They are named as in the model of the latest ``check_pair``.
        """
        refuse_shared(
            {
                name: (
                    (p, self._names.get(p, f"a tensor of shape {tuple(p.shape)}"))
                    for group in unwrapped(optimizer).param_groups
                    for p in group["params"]
                )
                for name, optimizer in optimizers.items()
            }
        )

    def attach(
        self,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        plan: Plan,
        options: StepOptions,
        /,
        *,
        simulated: bool,
    ) -> TorchAmp:
        """Apply ``plan`` in place and bind the optimizers, out of their hosts' wrappers."""
        optimizers = {name: unwrapped(each) for name, each in optimizers.items()}
        for optimizer in optimizers.values():
            refuse_wrapped(optimizer, plan.policy)
        return TorchAmp(model, optimizers, plan, options, simulated=simulated)

    def driver(self) -> Driver[TorchAmp]:
        """Return what builds and trains an experiment's model, and reads and writes weights."""
        from mpcore_torch.driver import TorchDriver

        return TorchDriver()

    def calls(self) -> CallsOf:
        """Return what runs the calls of a step alone."""
        from mpcore_torch.alone import calls

        return calls
