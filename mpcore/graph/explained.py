"""What by="graph" would do with a model: every call, every cast, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore._lib.records import to_plain
from mpcore.backend.backend import find_backend
from mpcore.graph.deciding import unused_rules
from mpcore.graph.draw import page
from mpcore.graph.part import GRAPH
from mpcore.policy.policy import Policy

if TYPE_CHECKING:
    from mpcore.graph.ir import GraphPlan

__all__ = ["Explained", "explain_graph"]


@dataclass(frozen=True)
class Explained:
    """The plans of a model's graphs.

    Attributes:
        policy: as text.
        plans: one a graph.
        unused: rules that decided for no call.
    """

    policy: str
    plans: tuple[GraphPlan, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        """Return a table a graph."""
        parts = [str(plan) for plan in self.plans]
        parts += [f"unused rule: {rule} (it decided for no call)" for rule in self.unused]
        return "\n\n".join([f"policy {self.policy}", *parts])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return dict(to_plain(self))

    def html(self) -> str:
        """Return a page with a picture, to be written to a file."""
        return page(self.plans, f"policy {self.policy}")


def explain_graph(model: Any, policy: Policy | str, *example: Any, device: str = "") -> Explained:
    """Return what by="graph" would do with ``model``; changes nothing.

    Args:
        model: a model of a framework whose backend lifts.
        policy: the policy.
        example: what the model is called with.
        device: whose op list holds; the one that the model is on if empty.
    """
    parsed = Policy.of(policy)
    part = GRAPH.of(find_backend(model))
    plans = part.plan(part.lift(model, example, whole=False), parsed, device)
    return Explained(str(parsed), plans, unused_rules(parsed, plans))
