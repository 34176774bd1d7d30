"""``explain``: what every layer of a model would do under a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from mpcore.errors import BackendError
from mpcore.graph.explained import explain_graph
from mpcore.policy.policy import Policy
from mpcore.tools.inspection.observe import dry_run, plan_of

if TYPE_CHECKING:
    from mpcore.graph.explained import Explained
    from mpcore.policy.plan import Plan
    from mpcore.tools.inspection.observation import Observation

__all__ = ["explain"]


@overload
def explain(model: Any, policy: Policy | str) -> Plan: ...


@overload
def explain(
    model: Any, policy: Policy | str, *example: Any, device: str = ""
) -> Observation | Explained: ...


def explain(
    model: Any, policy: Policy | str, *example: Any, device: str = ""
) -> Plan | Observation | Explained:
    """Return what every layer of ``model`` would do under ``policy``; changes nothing.

    Args:
        model: a torch.nn.Module, keras.Model, mindspore.nn.Cell, flax.nnx.Module or
            mpcore_numpy.Model.
        policy: a policy, its name, or its text.
        example: what the model is called with, values do not matter: then every op that it
            calls is told as well, its dtypes and what decides (see
            ``mpcore.tools.inspection.observe.dry_run``); under by="graph" every call of the graph
            and every cast, as a table, and as a page: ``.html()``.
        device: with ``example``: the device to tell it for, such as ``"cuda"``, at hand or not.

    Raises:
        PolicyError: the policy's text is wrong.
        BackendError: no backend knows the model, or ops cannot be told.
    """
    if example and Policy.of(policy).by == "graph":
        return explain_graph(model, policy, *example, device=device)
    if example:
        return dry_run(model, policy, *example, device=device)
    if device:
        msg = (
            f"`device` needs an example to run, got {device!r} alone; resolve_plan() takes a device"
        )
        raise BackendError(msg)
    return plan_of(model, policy)
