"""The dtypes of a model's multiply-adds, told before it is prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError
from mpcore.graph.part import as_arguments
from mpcore.tools.inspection.dtypes import Dtypes
from mpcore_torch.dry_run import dry_run
from mpcore_torch.layers import device_of
from mpcore_torch.tap import OPS

if TYPE_CHECKING:
    from torch import nn

    from mpcore.policy.coverage import Products
    from mpcore.policy.plan import Plan

__all__ = ["products"]


def products(model: nn.Module, plan: Plan, example: Any) -> list[Products]:
    """Return what a forward pass of a copy without values would multiply, in which dtypes.

    Raises:
        BackendError: the model depends on values, or a product would get two dtypes.
    """
    args, named = as_arguments(example)
    calls = Dtypes(OPS, backward=False)
    outcome = dry_run(model, plan, args, device_of(model).type, calls, named)
    trace = calls.trace(outcome)
    if trace.clashes:
        msg = f"{trace.clashes[0]}: the step would raise; mpcore.explain names a policy that runs"
        raise BackendError(msg)
    return list(trace.work)
