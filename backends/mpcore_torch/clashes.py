"""What is added to torch's own error where dtypes do not go together under a plan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mpcore_torch.layers import leaves

if TYPE_CHECKING:
    from torch import nn

    from mpcore.policy.plan import Plan

__all__ = ["DTYPES", "add_advice"]

DTYPES = re.compile("dtype|scalar type", re.IGNORECASE)
"""What torch says where an op gets dtypes that do not go together."""


def add_advice(exc: RuntimeError, plan: Plan, model: nn.Module) -> None:
    """Add to an error about dtypes where its cause is found; once."""
    if not DTYPES.search(str(exc)) or hasattr(exc, "__notes__"):
        return
    late = _late(plan, model)
    if late:
        exc.add_note(
            f"mpcore: {late} came into the model after `prepare`, so no plan casts it; "
            "amp.release(), put it in, and prepare again"
        )
    elif plan.policy.by in ("layer", "model"):
        exc.add_note(
            f"mpcore: layers are cast under {str(plan.policy)!r}, what a module computes itself is "
            f"not: mp.explain(model, {str(plan.policy)!r}, x) names the place, and a policy that "
            "runs"
        )


def _late(plan: Plan, model: nn.Module) -> str:
    """Return the first layer with parameters of its own that the plan does not know, or ''."""
    known = {entry.path for entry in plan.layers}
    for path, module in leaves(model).items():
        if path not in known and any(True for _ in module.parameters(recurse=False)):
            return f"layer {path!r} ({type(module).__name__})"
    return ""
