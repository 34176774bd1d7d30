"""Which policies a search may try: the named ones, and rules on top of them; one of each plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mpcore.backend.backend import check_policy
from mpcore.errors import MpcoreError
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.policy.rule import Rule
from mpcore.tools.profiling.values import pattern_by_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.backend.backend import Capabilities
    from mpcore.policy.layer import Layer

__all__ = ["following", "kept_full", "lowering_only", "named", "plan_key", "units"]

_KINDS = ("mixed", "autocast", "portable")  # where parameters lie is `mpcore memory`'s question
_MOST_UNITS = 200


def named(
    formats: Iterable[str], can: Capabilities, layers: Sequence[Layer]
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return named policies that run here, those that are only simulated, and those refused.

    Two that come to the same plan are one: the first.
    """
    native, simulated, refused = ["float32"], list[str](), dict[str, str]()
    seen = set[object]()
    for kind in _KINDS:
        for dtype in formats:
            name = f"{kind}_{dtype}"
            policy = Policy.named(name)
            try:
                is_simulated = check_policy(policy, can)
            except MpcoreError as exc:
                refused[name] = " ".join(str(exc).split())
                continue
            key = plan_key(policy, layers, can.device)
            if key not in seen:
                seen.add(key)
                (simulated if is_simulated else native).append(name)
    return native, simulated, refused


def plan_key(policy: Policy, layers: Sequence[Layer], device: str) -> object:
    """Return what a policy comes to: policies with one key run the same steps."""
    plan = resolve_plan(policy, layers, device)
    listed = [(e.path, e.param, e.compute, e.output, e.listed) for e in plan.layers]
    ops = [(e.op, e.compute, e.output) for e in plan.ops]
    return policy.by, policy.op_list, policy.scaling, tuple(listed), tuple(ops)


def kept_full(policy: str, paths: Iterable[str]) -> str:
    """Return a policy with layers kept full, on top of all that it says."""
    parsed = Policy.parse(policy)
    added = tuple(Rule("full", "path", path) for path in paths)
    return str(replace(parsed, rules=(*(r for r in parsed.rules if r not in added), *added)))


def units(layers: Sequence[Layer]) -> list[str]:
    """Return what may be kept full alone, as patterns of paths in the model's order."""
    leaves = [e.path for e in layers if e.path and e.category not in ("container", "loss")]
    leaves = [path for path in leaves if not any(c in "*?[]" for c in path)]
    if len(leaves) <= _MOST_UNITS:
        return leaves
    return list(dict.fromkeys(pattern_by_path(leaves).values()))


def lowering_only(
    policy: str, low: Iterable[str], every: Sequence[str], follows: Iterable[str]
) -> str:
    """Return a policy in which those units alone are not full.

    Args:
        policy: what is low under it.
        low: the units.
        every: all units.
        follows: those that run in what comes in: beside full ones they would never be low.
    """
    parsed, low, follows = Policy.parse(policy), set(low), set(follows)
    words = {unit: "lower" if unit in low else "full" for unit in every}
    asked = [unit for unit in every if unit not in low or unit in follows]
    rules = (Rule(words[unit], "path", unit) for unit in asked)
    return str(replace(parsed, rules=(*parsed.rules, *rules)))


def following(policy: str, layers: Sequence[Layer], device: str) -> list[str]:
    """Return the layers that run in whatever dtype comes in."""
    plan = resolve_plan(Policy.parse(policy), layers, device)
    return [e.path for e in plan.layers if e.compute == "follow" and e.category != "container"]
