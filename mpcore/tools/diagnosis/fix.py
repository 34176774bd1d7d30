"""The smallest change of a policy under which the batch passes: each is tried."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from mpcore.errors import PolicyError
from mpcore.numerics import ops
from mpcore.policy.policy import PRESETS, Policy
from mpcore.tools.diagnosis.locate import Finding, is_low, locate, passes
from mpcore.tools.diagnosis.record import Trial
from mpcore.tools.inspection import Inspection, Request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mpcore.policy.plan import Plan

__all__ = ["Again", "Fix", "Search", "wide_of"]

_FEW, _MOST = 3, 6  # layers that are named one by one, before and after wider rules were tried


class Again(Protocol):
    """Runs the batch again at the same weights; None is the policy that the model has."""

    def __call__(self, policy: Policy | None, request: Request) -> Inspection:
        """Return what every layer did.

        Raises:
            Exception: the framework cannot run the model under that policy.
        """
        ...


@dataclass(frozen=True)
class Fix:
    """What helped, and what was tried.

    Attributes:
        rule: in a policy's words; None where nothing helped.
        policy: the whole policy with it.
        tried: everything that was tried, in order.
    """

    rule: str | None
    policy: Policy | None
    tried: tuple[Trial, ...]


@dataclass
class Search:
    """Tries fixes from the culprit outwards.

    Attributes:
        again: runs the batch.
        plan: the plan that overflowed.
        reference: a float32 run of the batch, at a scale of 1.
        scale: loss scale of the step.
        names: the parameters that the step moves; empty for all.
        framework: whose names ops have, as in ``mpcore.numerics.ops``.
    """

    again: Again
    plan: Plan
    reference: Inspection
    scale: float
    names: Collection[str] = ()
    framework: str = ""
    _tried: list[Trial] = field(default_factory=list)
    _runs: dict[str, Inspection] = field(default_factory=dict)

    def run(self, finding: Finding) -> Fix:
        """Return the first fix that works."""
        if finding.anyway:
            return Fix(None, None, ())
        chain = self._chain(finding)
        steps: list[Iterator[tuple[str, Policy]]] = [
            self._loss(finding),
            self._op(finding),
            _part(chain, _FEW),
            self._wider(finding),
            _part(chain, _MOST - _FEW),
            self._formats(),
        ]
        for step in steps:
            for rule, policy in step:
                if self._passes(rule, policy):
                    return self._pruned(rule, policy)
        return Fix(None, None, tuple(self._tried))

    def run_layers(self, finding: Finding) -> Fix:
        """Return the first fix that puts layers into float32 and leaves the rest as it is."""
        steps = [self._chain(finding), self._op(finding), self._wider(finding)]
        for rule, policy in (entry for step in steps for entry in step):
            if self._passes(rule, policy):
                return self._pruned(rule, policy)
        return Fix(None, None, tuple(self._tried))

    def _passes(self, rule: str, policy: Policy, *, told: bool = True) -> bool:
        if any(trial.rule == rule for trial in self._tried):
            return False
        scale = 1.0 if policy.scaling.kind == "none" else self.scale
        try:
            seen = self._runs[rule] = self.again(policy, Request(scale=scale))
        except Exception as exc:  # a framework's own, where dtypes meet that it does not add
            self._tried.append(Trial(rule, passed=False, note=_short(exc)))
            return False
        passed = passes(seen, self.names)
        if told:
            self._tried.append(Trial(rule, passed))
        return passed

    def _pruned(self, rule: str, policy: Policy) -> Fix:
        """Leave out rules that are not needed."""
        before = len(self.plan.policy.rules)
        added = list(policy.rules[before:])
        if policy != replace(self.plan.policy, rules=policy.rules) or len(added) < 2:
            return Fix(rule, policy, tuple(self._tried))
        for one in list(added):
            fewer = [r for r in added if r != one]
            smaller = replace(policy, rules=(*policy.rules[:before], *fewer))
            if fewer and self._passes(_text(smaller, before), smaller, told=False):
                added, policy = fewer, smaller
                rule = _text(smaller, before)
                self._tried.append(Trial(rule, passed=True))
        return Fix(rule, policy, tuple(self._tried))

    def _chain(self, finding: Finding) -> Iterator[tuple[str, Policy]]:
        """Yield one more layer in float32 each time, where the run before overflowed."""
        policy, chosen = self.plan.policy, list[str]()
        found: Finding | None = finding
        while found is not None and len(chosen) < _MOST:
            layer = self._next(found, chosen)
            if layer is None:
                return
            chosen.append(layer)
            policy = policy.full(_literal(layer))
            rule = _text(policy, len(self.plan.policy.rules))
            yield rule, policy
            seen = self._runs.get(rule)
            if seen is not None:
                found = locate(seen, self.reference, self._computes(chosen), self.names)

    def _next(self, finding: Finding, chosen: Collection[str]) -> str | None:
        can = {e.path for e in self.plan.layers if e.category != "container" and e.path}
        order = [p for p in (finding.layer, *finding.before) if p in can and p not in chosen]
        return next((path for path in order if self._is_low(path)), None)

    def _is_low(self, path: str) -> bool:
        entry = self.plan[path]
        return any(is_low(d) or d in ("op", "follow") for d in (entry.compute, entry.output))

    def _computes(self, chosen: Collection[str]) -> dict[str, str]:
        found = {entry.path: entry.compute for entry in self.plan.layers}
        return found | dict.fromkeys(chosen, "float32")

    def _loss(self, finding: Finding) -> Iterator[tuple[str, Policy]]:
        if finding.phase == "loss" and is_low(self.plan.policy.output):
            yield "output=float32", replace(self.plan.policy, output="float32")

    def _op(self, finding: Finding) -> Iterator[tuple[str, Policy]]:
        """Yield a rule for the op, where the policy decides op by op."""
        if self.plan.policy.by != "op" or finding.op is None or not self.framework:
            return
        try:
            name = ops.find(self.framework, finding.op).name
        except PolicyError:
            return  # an op that the table does not have
        yield f"full op={name}", self.plan.policy.full(op=name)

    def _wider(self, finding: Finding) -> Iterator[tuple[str, Policy]]:
        """Yield the layers around the culprit, then all of its kind."""
        policy = self.plan.policy
        inside = finding.layer or next(iter(finding.before), "")
        container = any(e.path == inside and e.category == "container" for e in self.plan.layers)
        around = inside if container else inside.rpartition(".")[0]
        if around:
            pattern = f"{_literal(around)}.*"
            yield f"full path={pattern}", policy.full(pattern)
        kinds = {entry.path: entry.category for entry in self.plan.layers}
        kind = kinds.get(inside, "container")
        if kind != "container":
            yield f"full layer={kind}", policy.full(layer=kind)

    def _formats(self) -> Iterator[tuple[str, Policy]]:
        """Yield other formats for the whole model."""
        policy = self.plan.policy
        if policy.compute == "float16":
            yield wide_of(policy)
        if policy.compute != "float32":
            yield "float32", Policy.named("float32")


def _part(chain: Iterator[tuple[str, Policy]], count: int) -> Iterator[tuple[str, Policy]]:
    """Yield the next ``count`` of ``chain``, which goes on where another part ended."""
    for _ in range(count):
        entry = next(chain, None)
        if entry is None:
            return
        yield entry


def wide_of(policy: Policy) -> tuple[str, Policy]:
    """Return a float16 policy with bfloat16 in its place, and how that is said."""
    names = [n for n in ("param", "compute", "output") if getattr(policy, n) == "float16"]
    changed: dict[str, Any] = dict.fromkeys(names, "bfloat16")
    wide = replace(policy, **changed, loss_scale="auto")
    name = policy.name.replace("float16", "bfloat16")
    if name not in PRESETS or PRESETS[name].compute != "bfloat16":
        return ", ".join(f"{name}=bfloat16" for name in names), replace(wide, name="")
    return name, replace(wide, name=name)


def _short(exc: Exception) -> str:
    text = " ".join(str(exc).split())
    return f"not possible here: {text[:300] or type(exc).__name__}"


def _literal(path: str) -> str:
    """Return a pattern that matches ``path`` alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def _text(policy: Policy, before: int) -> str:
    return "; ".join(str(rule) for rule in policy.rules[before:])
