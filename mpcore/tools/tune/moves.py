"""Rules on top of a named policy, and what a step is foretold to save with each of them."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from mpcore.errors import MpcoreError, PolicyError
from mpcore.numerics.ops import op as table_row
from mpcore.policy.plan import resolve_plan
from mpcore.policy.policy import Policy
from mpcore.policy.rule import Rule
from mpcore.tools.profiling.values import pattern_by_path
from mpcore.tools.tune.candidates import plan_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpcore.backend.calls import ModelCall
    from mpcore.policy.layer import Layer
    from mpcore.tools.profiling.prediction import Predictor

__all__ = ["Move", "foretold", "rules_of"]

_MOST = 16  # promises of one named policy
_PAIRED = 4  # the best rules, that are joined by two
_MORE = 1.1  # times the better of two rules, that both must save
_WORDS = (("full", ""), ("full", "lower"), ("lower", ""))


class Move(NamedTuple):
    """A policy, and what it is foretold to save.

    Attributes:
        saves: seconds of a step.
        policy: it.
        rule: what it adds.
        why: the reason.
    """

    saves: float
    policy: str
    rule: str
    why: str


def rules_of(base: Policy, layers: Sequence[Layer], calls: Sequence[ModelCall]) -> Iterator[str]:
    """Yield the rules that may change something: by op, by pattern of paths, by type."""
    ran = {call.layer for call in calls}
    leaves = [e for e in layers if e.path in ran and e.path]
    if base.by == "op":
        names = {call.op for call in calls} | {e.op for e in leaves}
        for name in sorted(filter(_in_table, names)):
            yield from (str(Rule(word, "op", name)) for word in ("full", "lower"))
    pattern = pattern_by_path(e.path for e in leaves)
    targets = [("path", pattern[e.path]) for e in leaves] + [("layer", e.type) for e in leaves]
    for target, name in dict.fromkeys(targets):
        for word, output in _WORDS:
            try:
                yield str(Rule(word, target, name, output))
            except PolicyError:  # a path with characters that no rule can hold
                break


def foretold(
    predictor: Predictor,
    base: str,
    layers: Sequence[Layer],
    calls: Sequence[ModelCall],
    device: str,
) -> list[Move]:
    """Return what promises to be faster than a named policy, most first; one of each plan.

    Args:
        predictor: of the model.
        base: the named policy.
        layers: of the model.
        calls: of a step.
        device: type of the device, for rules about it.
    """
    seen: set[object] = {plan_key(Policy.parse(base), layers, device)}
    before = predictor(base)

    def moves(rules: Iterator[str]) -> Iterator[Move]:
        new: list[tuple[str, str]] = []
        for rule in rules:
            added = Policy.parse(f"{base}; {rule}")
            try:
                key = plan_key(added, layers, device)
            except MpcoreError:
                continue
            if key not in seen:
                seen.add(key)
                new.append((str(added), rule))
        predictor.measure(policy for policy, _ in new)
        for policy, rule in new:
            then = predictor(policy)
            saves = before.seconds - then.seconds
            if saves > 0:
                why = _why(policy, layers, device, calls, before.calls, then.calls)
                yield Move(saves, policy, rule, why)

    found = sorted(moves(rules_of(Policy.parse(base), layers, calls)), key=lambda one: -one.saves)
    alone = {one.rule: one.saves for one in found[:_PAIRED]}
    found += [
        one
        for one in moves("; ".join(two) for two in combinations(alone, 2))
        if one.saves > _MORE * max(alone[rule] for rule in one.rule.split("; "))
    ]
    return sorted(found, key=lambda one: -one.saves)[:_MOST]


def _why(
    policy: str,
    layers: Sequence[Layer],
    device: str,
    calls: Sequence[ModelCall],
    before: Sequence[float],
    then: Sequence[float],
) -> str:
    """Return which calls save most of it."""
    types = {e.path: e.type for e in layers}
    kinds = {e.path: e.compute for e in resolve_plan(Policy.parse(policy), layers, device).layers}
    saved: dict[str, float] = {}
    lose = 0.0
    for call, now, new in zip(calls, before, then, strict=True):
        if call.layer is None:
            name = f"{call.op or call.key.partition(' ')[0]}, called outside of layers"
        else:
            full = " in float32" if kinds[call.layer] == "float32" else ""
            name = f"{types[call.layer]}{full}"
        if now > new:
            saved[name] = saved.get(name, 0.0) + now - new
        else:
            lose += new - now
    most = max(saved, key=lambda name: saved[name])
    told = f"{most}: alone it saves {saved[most] * 1e3:.3g} ms"
    others = sum(saved.values()) - saved[most] - lose
    return f"{told}, other calls {others * 1e3:+.2g} ms"


def _in_table(name: str) -> bool:
    try:
        return bool(name) and table_row(name).group not in ("reshape", "training")
    except PolicyError:
        return False
