"""What is added to torch's own error where dtypes do not go together under a plan by layer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpcore.policy.plan import Plan

__all__ = ["DTYPES", "add_advice"]

DTYPES = re.compile("dtype|scalar type", re.IGNORECASE)
"""What torch says where an op gets dtypes that do not go together."""


def add_advice(exc: RuntimeError, plan: Plan) -> None:
    """Add to an error about dtypes where its cause is found; once."""
    if plan.policy.by != "layer" or not DTYPES.search(str(exc)) or hasattr(exc, "__notes__"):
        return
    exc.add_note(
        f"mpcore: layers are cast under {str(plan.policy)!r}, what a module computes itself is "
        f"not: mp.explain(model, {str(plan.policy)!r}, x) names the place, and a policy that runs"
    )
