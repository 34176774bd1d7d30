"""Which rules could make a step faster: from where its time goes to policies worth trying."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mpcore.backend.profiler import CAST, LOSS
from mpcore.errors import PolicyError
from mpcore.numerics.dtypes import is_low
from mpcore.numerics.ops import op as table_row
from mpcore.policy.policy import Policy
from mpcore.policy.rule import Rule
from mpcore.tools.profiling.values import pattern_by_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mpcore.backend.profiler import KernelTime, OpTime
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import LayerPlan, Plan
    from mpcore.tools.profiling.values import Versus

__all__ = ["Candidate", "candidates", "kernel_saving", "reason", "together"]


@dataclass(frozen=True)
class Candidate:
    """A policy worth trying.

    Attributes:
        policy: as text.
        rule: what it adds to the profiled policy; ``""`` where it is another one altogether.
        why: in words, with numbers.
        seconds: a step, that its kernels alone would save; what casts around it cost is not in.
        reach: the layers, or the op, that the rule is about; empty for another policy altogether.
    """

    policy: str
    rule: str
    why: str
    seconds: float
    reach: frozenset[str] = frozenset()


def kernel_saving(op: OpTime, timed: Mapping[str, KernelTime]) -> float:
    """Return the seconds that the other dtype saves in the kernels of ``op``; negative if slower.

    Args:
        op: over all steps, as recorded.
        timed: kernels by name; those that were not timed count as 0.
    """
    found = ((calls, timed.get(name)) for name, (calls, _) in op.kernels.items())
    return sum(calls * k.saves.median for calls, k in found if k is not None and k.saves)


def reason(op: OpTime, plan: Plan) -> str:
    """Return why an op ran in float32 under a policy that lowers."""
    if op.phase not in ("forward", "backward"):
        return "weights, their gradients and the optimizer's state are float32"
    if op.layer == LOSS:
        return "outside of the model: it runs in the dtype that the model hands on"
    if op.op == "AccumulateGrad":
        return "gradients of float32 parameters"
    if op.layer is None:
        return "not known: its layer cannot be told"
    rules = {entry.op: entry for entry in plan.ops if entry.compute in ("float32", "promote")}
    if op.op in rules:
        return rules[op.op].rule
    entry = next((entry for entry in plan.layers if entry.path == op.layer), None)
    if entry is None or entry.category == "container":
        if plan.policy.by == "op":
            return "the op list leaves it in the dtype that comes in"
        return "called outside of layers: it runs in the widest dtype that comes in"
    if entry.compute == "float32":
        return entry.rule
    if entry.compute == "op":
        return "the op list keeps it, or leaves it in the dtype that comes in"
    if entry.category == "embedding":
        return "rows are looked up in the float32 table, then rounded"
    if entry.compute == "follow":
        return f"{entry.rule}: it runs in the dtype that comes in"
    return f"inside a layer that computes in {entry.compute}: a part that its kernel keeps wide"


def candidates(
    plan: Plan,
    layers: Sequence[Layer],
    ops: Sequence[OpTime],
    steps: int,
    kernels: Iterable[KernelTime],
    *,
    device: str = "",
) -> list[Candidate]:
    """Return policies worth trying, the one that promises most first.

    Args:
        plan: what the profiled policy means for the model.
        layers: of the model, as its backend lists them.
        ops: as recorded.
        steps: number of recorded steps.
        kernels: timed alone.
        device: type of the device, for rules about it.
    """
    policy = plan.policy
    if not is_low(policy.compute):
        return []
    timed = {kernel.name: kernel for kernel in kernels}
    model = [op for op in ops if op.phase in ("forward", "backward") and op.layer is not None]
    if policy.by == "op":
        found = _for_ops(policy, model, timed, steps)
    else:
        found = _for_layers(plan, layers, model, timed, steps, device)
        found += _for_functions(plan, model, timed, steps)
    kept: list[Candidate] = []
    for one in sorted(found, key=lambda candidate: -candidate.seconds):
        # Part of a rule that promises more is not worth a try of its own.
        if not one.reach or not any(one.reach <= other.reach for other in kept):
            kept.append(one)
    return kept


def together(policy: Policy, tried: Sequence[Versus]) -> list[Candidate]:
    """Return a policy of all rules that helped, if there are several and it was not tried."""
    if any(";" in one.rule for one in tried):
        return []
    helped = [one for one in tried if one.rule and one.helps]
    rules = "; ".join(one.rule for one in helped)
    if len(helped) < 2:
        return []
    seconds = sum(one.saves.median for one in helped)
    return [Candidate(f"{policy}; {rules}", rules, "the rules that helped, together", seconds)]


def _for_layers(
    plan: Plan,
    layers: Sequence[Layer],
    ops: Sequence[OpTime],
    timed: Mapping[str, KernelTime],
    steps: int,
    device: str,
) -> list[Candidate]:
    """Return a rule for each kind of layer whose kernels, or casts, the other dtype would save."""
    found = []
    for (target, pattern, compute), entries in _groups(plan).items():
        own = {entry.path for entry in entries}
        spent = [op for op in ops if op.layer in own]
        lowers = compute == "float32"
        ran = "float32" if lowers else plan.policy.compute
        alike = [op for op in spent if op.op != CAST and op.dtype == ran]
        kernels = sum(kernel_saving(op, timed) for op in alike) / steps
        casts = sum(op.seconds for op in spent if op.op == CAST) / steps
        seconds = kernels + (casts if lowers or not timed else 0.0)
        rule = _rule_for(lowers, target, pattern) if seconds > 0 and alike else None
        if rule is None or _meant(rule, layers, device) != own:
            continue
        why = f"{entries[0].type}: {_told(kernels, casts, ran)}; "
        why += f"float32 now ({entries[0].rule})" if lowers else f"{entries[0].rule} now"
        found.append(_adding(plan.policy, rule, why, seconds, own))
    return found


def _groups(plan: Plan) -> dict[tuple[str, str, str], list[LayerPlan]]:
    """Return layers that one rule may be about, by (target, pattern, compute)."""
    alike: dict[tuple[str, str, str], list[LayerPlan]] = {}
    leaves = [e for e in plan.layers if e.category not in ("container", "loss") and e.path]
    pattern = pattern_by_path(entry.path for entry in leaves)
    for entry in leaves:
        alike.setdefault(("path", pattern[entry.path], entry.compute), []).append(entry)
        alike.setdefault(("layer", entry.type, entry.compute), []).append(entry)
    paths = [own for (target, *_), own in alike.items() if target == "path"]
    return {key: own for key, own in alike.items() if key[0] == "path" or own not in paths}


def _told(kernels: float, casts: float, ran: str) -> str:
    other = "16 bits" if ran == "float32" else "float32"
    parts = [f"its kernels alone save {kernels * 1e3:.3g} ms in {other}"] if kernels > 0 else []
    parts += [f"its casts take {casts * 1e3:.3g} ms"] if casts > 0 else []
    return " and ".join(parts)


def _rule_for(lowers: bool, target: str, pattern: str) -> Rule | None:
    try:
        return Rule("lower", target, pattern) if lowers else Rule("full", target, pattern, "lower")
    except PolicyError:  # a path with characters that no rule can hold
        return None


def _meant(rule: Rule, layers: Sequence[Layer], device: str) -> set[str]:
    leaves = (layer for layer in layers if layer.category != "container")
    return {layer.path for layer in leaves if rule.decides(layer, device)}


def _adding(policy: Policy, rule: Rule, why: str, seconds: float, reach: set[str]) -> Candidate:
    return Candidate(f"{policy}; {rule}", str(rule), why, seconds, frozenset(reach))


def _for_functions(
    plan: Plan, ops: Sequence[OpTime], timed: Mapping[str, KernelTime], steps: int
) -> list[Candidate]:
    """Return policies for functions called outside of layers: by op, and by who hands them inputs.

    By layer a function runs in what comes in: a layer that is kept full makes it float32, too.
    """
    policy = plan.policy
    if policy.by != "layer":
        return []
    containers = {e.path for e in plan.layers if e.category == "container"}
    outside = [op for op in ops if op.layer in containers and op.dtype == policy.compute]
    base = Policy.named(f"autocast_{policy.compute}")
    found = []
    for name, seconds in _savings(outside, timed, steps).items():
        if seconds > 0 and _in_table(name):
            rules = (*policy.rules, Rule("full", "op", name))
            other = replace(base, rules=rules, loss_scale=policy.loss_scale)
            told = _told(seconds, 0, policy.compute)
            why = (
                f"{name}, called outside of layers, where a rule of by='layer' does not reach: "
                f"{told}"
            )
            found.append(Candidate(str(other), "", why, seconds))
            homes = {op.layer for op in outside if op.op == name}
            for pattern, paths in _producers(plan, homes).items():
                rule = _rule_for(False, "path", pattern)
                why = f"{name} behind it follows what comes in: {told}"
                if rule is not None:  # full, and handed on so: else the function runs in 16 bits
                    rule = replace(rule, output="")
                    found.append(_adding(policy, rule, why, seconds, paths))
    return found


def _producers(plan: Plan, homes: set[str | None]) -> dict[str, set[str]]:
    """Return lowered products that stand beside a function in its container, by pattern.

    Which of them it gets its inputs from is not known: trying them tells.
    """
    leaves = [e.path for e in plan.layers if e.category != "container" and e.path]
    pattern, found = pattern_by_path(leaves), dict[str, set[str]]()
    for entry in plan.layers:
        beside = entry.path.rpartition(".")[0] in homes and bool(entry.path)
        if beside and entry.category in ("linear", "conv") and is_low(entry.compute):
            found.setdefault(pattern[entry.path], set()).add(entry.path)
    return found


def _for_ops(
    policy: Policy, ops: Sequence[OpTime], timed: Mapping[str, KernelTime], steps: int
) -> list[Candidate]:
    """Return a rule for each op that the other dtype would speed up."""
    found = []
    for word, dtype in (("full", policy.compute), ("lower", "float32")):
        own = [op for op in ops if op.dtype == dtype and op.layer != LOSS]
        for name, kernels in _savings(own, timed, steps).items():
            casts = sum(op.seconds for op in ops if op.op == CAST and op.cause == name) / steps
            seconds = kernels + (casts if word == "lower" else 0.0)
            if seconds > 0 and _in_table(name):
                why = f"{name}: {_told(kernels, casts, dtype)}"
                found.append(_adding(policy, Rule(word, "op", name), why, seconds, {name}))
    return found


def _savings(
    ops: Sequence[OpTime], timed: Mapping[str, KernelTime], steps: int
) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in ops:
        if op.op != CAST:
            found[op.op] = found.get(op.op, 0.0) + kernel_saving(op, timed) / steps
    return found


def _in_table(name: str) -> bool:
    try:
        return table_row(name).group not in ("reshape", "training")
    except PolicyError:
        return False
