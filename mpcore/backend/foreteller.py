"""What tells, before a model is prepared, the dtypes of its multiply-adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.policy.coverage import Products
    from mpcore.policy.plan import Plan

__all__ = ["Foreteller"]


class Foreteller(Protocol):
    """Runs a model without values."""

    def products(self, model: Any, plan: Plan, example: Any, /) -> Iterable[Products]:
        """Return what a training forward pass under ``plan`` would multiply; changes nothing.

        Args:
            model: not prepared.
            plan: the plan for it.
            example: what it is called with: a tuple, a dict by name, or the only argument.

        Raises:
            BackendError: it cannot be told.
        """
        ...
