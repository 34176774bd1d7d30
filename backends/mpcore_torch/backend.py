"""What torch is asked and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore.backend import Capabilities, Support
from mpcore.errors import OptimizerError
from mpcore_torch.layers import list_layers
from mpcore_torch.refuse import refuse_prepared
from mpcore_torch.step import TorchAmp

if TYPE_CHECKING:
    from torch import nn

    from mpcore.plan import Layer, Plan

__all__ = ["TorchBackend"]


class TorchBackend:
    """PyTorch on CPU and CUDA. On CUDA it was not run: no such device was at hand."""

    name = "torch"

    def capabilities(self, model: Any = None, /) -> Capabilities:
        """Return what the device of ``model`` can do."""
        first = next(model.parameters(), None) if model is not None else None
        device = str(first.device) if first is not None else "cpu"
        slow = "native kernels; convolutions are slow without avx512_fp16"
        return Capabilities(
            backend=self.name,
            device=device,
            versions={"torch": torch.__version__},
            compute={
                "float16": Support("native", slow if device == "cpu" else ""),
                "bfloat16": Support("native"),
            },
            by={name: Support("native") for name in ("op", "layer", "model")},
            rules=dict.fromkeys(("op", "layer", "model"), ("path", "layer")),
        )

    def layers(self, model: nn.Module, /) -> list[Layer]:
        """Return the layer tree of ``model``."""
        return list_layers(model)

    def check_pair(self, model: nn.Module, optimizer: Any, /) -> None:
        """Raise OptimizerError unless ``optimizer`` is torch's, over parameters of ``model``."""
        refuse_prepared(model)
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
            msg = f"`optimizer` must be a torch.optim.Optimizer for this model, got {kind}"
            raise OptimizerError(msg)
        if isinstance(optimizer, torch.optim.LBFGS):
            msg = (
                "`optimizer` must take one gradient a step, got LBFGS, which evaluates the loss "
                "several times inside a step; use SGD, Adam, AdamW or the like"
            )
            raise OptimizerError(msg)
        own = set(model.parameters())
        given = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = sum(param not in own for param in given)
        if foreign:
            msg = (
                f"`optimizer` must hold parameters of `model`: {foreign} of its {len(given)} "
                f"tensors are not parameters of this {type(model).__name__}; "
                "make the optimizer from model.parameters()"
            )
            raise OptimizerError(msg)

    def attach(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, /, *, simulated: bool
    ) -> TorchAmp:
        """Apply ``plan`` in place and bind the optimizer."""
        return TorchAmp(model, optimizer, plan, simulated=simulated)

    def compare_driver(self) -> Any:
        """Return the driver for ``mpcore compare``."""
        from mpcore_torch.driver import TorchDriver

        return TorchDriver()
