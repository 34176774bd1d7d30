"""What the records of a run suggest: rules of thumb, each with its evidence and its fix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from mpcore.numerics.dtypes import FORMATS, is_low

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy

__all__ = ["Advice", "advise"]

_FEW = 20  # records below which nothing is said


@dataclass(frozen=True)
class Advice:
    """One finding.

    Attributes:
        what: what was seen.
        evidence: the numbers behind it.
        fix: what to try.
    """

    what: str
    evidence: str
    fix: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.what} ({self.evidence}): {self.fix}"


def advise(
    records: Sequence[dict[str, Any]], policy: Policy, plan: Plan | None = None
) -> list[Advice]:
    """Return what ``records``, oldest first, suggest under ``policy``; empty if all is well.

    Nothing is said of fewer than 20 records. Thresholds are rules of thumb: more than 5 % of the
    steps skipped, a gradient norm ten times its median of before, half of a layer's gradients
    below the smallest normal value, updates of a tenth of the weights. With a plan: more than
    half of the layers that cost time not lowered.
    """
    if len(records) < _FEW:
        return []
    found = [rule(records, policy) for rule in _RULES]
    if plan is not None:
        found.append(_not_lowered(plan))
    return [advice for advice in found if advice is not None]


def _finite(records: Sequence[dict[str, Any]], name: str) -> list[float]:
    values = (record.get(name) for record in records)
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def _skipped(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    skipped = [record for record in records if not record["stepped"]]
    share = len(skipped) / len(records)
    if share <= 0.05:
        return None
    evidence = f"{len(skipped)} of {len(records)} steps"
    forward = [r for r in skipped if not isinstance(r["loss"], int | float)]
    if len(forward) > len(skipped) / 2:
        return Advice(
            "steps are skipped because the loss itself is not finite",
            evidence,
            "no loss scale fixes that: keep the layers that overflow in float32 "
            "(policy.full(...)), or use bfloat16",
        )
    culprits = [str(r["culprit"]) for r in skipped if r["culprit"]]
    most = max(set(culprits), key=culprits.count) if culprits else "no parameter in particular"
    return Advice(
        "many steps are skipped because gradients overflow",
        f"{evidence}, most often first in {most}",
        "lower the largest scale (max_scale), keep that layer in float32, or clip the loss",
    )


def _at_floor(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    rule, last = policy.scaling, records[-_FEW:]
    if rule.kind != "dynamic" or not all(r["next_scale"] <= rule.min_scale for r in last):
        return None
    return Advice(
        "the loss scale lies on its floor",
        f"{rule.min_scale:g} over the last {len(last)} steps",
        "gradients are close to the format's largest value: lower min_scale below 1, shrink the "
        "loss, or use bfloat16",
    )


def _at_cap(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    rule, last = policy.scaling, records[-_FEW:]
    if rule.kind != "dynamic" or not all(r["next_scale"] >= rule.max_scale for r in last):
        return None
    return Advice(
        "the loss scale lies on its cap",
        f"{rule.max_scale:g} over the last {len(last)} steps, "
        f"gradient norm {median(_finite(last, 'grad_norm') or [0.0]):.2g}",
        "gradients are tiny and small ones may be lost: raise max_scale, or check that they "
        "have not vanished",
    )


def _exploding(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    half = len(records) // 2
    before, now = _finite(records[:half], "grad_norm"), _finite(records[-_FEW // 2 :], "grad_norm")
    if not before or not now or median(now) <= 10 * median(before):
        return None
    return Advice(
        "gradients grow",
        f"median norm {median(before):.3g}, of late {median(now):.3g}{_scales(records)}",
        "lower the learning rate or clip (clip_norm=); the loss scale does not change true "
        "gradients",
    )


def _vanishing(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    now = _finite(records[-_FEW // 2 :], "grad_norm")
    if not now or max(now) > 0.0:
        return None
    words = "the loss scale is too small for float16" if policy.compute == "float16" else "no scale"
    return Advice(
        "all gradients are zero",
        f"over the last {len(now)} steps{_scales(records)}",
        f"check that the loss depends on the parameters; {words} is another cause",
    )


def _scales(records: Sequence[dict[str, Any]]) -> str:
    """Return in words what the loss scale did meanwhile; empty if it is constant."""
    scales = _finite(records, "next_scale")
    if not scales or min(scales) == max(scales):
        return ""
    return f", the loss scale went from {scales[0]:g} to {scales[-1]:g}"


def _worst(records: Sequence[dict[str, Any]], name: str) -> tuple[str, float]:
    """Return the layer with the largest median of a number, and that; no layer and 0 if none."""
    values: dict[str, list[float]] = {}
    for record in records:
        for layer, found in (record.get("layers") or {}).items():
            if name in found:
                values.setdefault(layer, []).append(found[name])
    medians = {layer: median(each) for layer, each in values.items()}
    return max(medians.items(), key=lambda item: item[1], default=("", 0.0))


def _underflow(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    layer, share = _worst(records, "small")
    if share <= 0.5:
        return None
    return Advice(
        "gradients of a layer are too small for their format",
        f"{share:.0%} of those of {layer!r} are below its smallest normal value",
        f"precision is lost there: let the loss scale grow further (init_scale, max_scale), keep "
        f"that layer in full precision (rule 'full {layer}'), or use bfloat16",
    )


def _saturated(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    taken = [
        record for record in records if record["stepped"]
    ]  # a skipped one is known to overflow
    layer, share = _worst(taken, "large")
    if share == 0.0:
        return None
    return Advice(
        "gradients of a layer lie at the largest value of their format",
        f"{share:.1%} of those of {layer!r}, in steps that were taken",
        f"they were cut off there: lower max_scale, or keep that layer in full precision (rule "
        f"'full {layer}')",
    )


def _leaping(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    layer, ratio = _worst(records, "update")
    if ratio <= 0.1:
        return None
    return Advice(
        "a layer moves far in one step",
        f"{layer!r} by {ratio:.1%} of its weights' norm",
        "a thousandth is common: lower the learning rate, or warm it up; the format is not the "
        "cause",
    )


_COSTLY = ("linear", "conv", "conv_transpose", "attention", "recurrent")


def _not_lowered(plan: Plan) -> Advice | None:
    if plan.policy.compute not in FORMATS or not is_low(plan.policy.compute):
        return None
    costly = [row for row in plan.layers if row.category in _COSTLY]
    full = [row.path for row in costly if row.compute in ("float32", "float64")]
    if len(full) <= len(costly) / 2:
        return None
    return Advice(
        "most of the layers that cost time are not lowered",
        f"{len(full)} of {len(costly)}, such as {full[0]!r}",
        "no speed-up is to be expected: mp.explain shows the rule that keeps each, and `mpcore "
        "profile` how much time lowering would bring",
    )


def _stalled(records: Sequence[dict[str, Any]], policy: Policy) -> Advice | None:
    shares: dict[str, list[float]] = {}
    for record in records[-_FEW:]:
        for layer, share in (record.get("lost_updates") or {}).items():
            shares.setdefault(layer, []).append(share)
    worst = max(shares, key=lambda layer: median(shares[layer]), default=None)
    if worst is None or median(shares[worst]) <= 0.5:
        return None
    return Advice(
        "updates are lost to rounding",
        f"{median(shares[worst]):.0%} of those of {worst!r}",
        "16-bit parameters stop moving: use master='kahan', 'split' or 'stochastic'",
    )


_RULES: tuple[Callable[[Sequence[dict[str, Any]], Policy], Advice | None], ...] = (
    _skipped,
    _at_floor,
    _at_cap,
    _exploding,
    _vanishing,
    _stalled,
    _underflow,
    _saturated,
    _leaping,
)
