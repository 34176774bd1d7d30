"""Verdicts on one operation in one dtype: from measured facts to a level."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING

from mpcore.capabilities.facts import LOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.capabilities.facts import Fact, Framework, Machine

__all__ = ["EMULATED", "LEVELS", "PAYS", "Speed", "Verdict", "judge", "speed", "table"]

LEVELS = ("native", "emulated", "simulated", "wrong", "absent")

PAYS = 1.2
"""A dtype pays from this speed on: casts and the loss scale cost a step 5 to 25 percent
(docs/step-cost.md), which a smaller gain does not outweigh."""

EMULATED = 1.5
"""Slower than float32 by this factor in three quarters of the rounds shows conversion: a native
kernel moves half the bytes. Measured on a CPU without avx512_fp16, float16: 10 to 30 in matmul and
convolution (torch 2.13.0), 2 to 17 in every single operation (mindspore 2.10.0)."""

_COMPOSED = (
    "lstm",
    "lstm_long",
    "attention",
    "mlp_step",
)  # slower for more reasons than one: casts, launches

_INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16", "svebf16"),
    "float16": ("avx512_fp16", "amx_fp16", "fphp", "asimdhp"),
}
"""CPU flags, as Linux spells them, one of which arithmetic in that dtype needs. Source: Intel
Architecture Instruction Set Extensions reference; Arm Architecture Reference Manual, FEAT_BF16
and FEAT_FP16; names in arch/x86 and Documentation/arch/arm64/elf_hwcaps of Linux 6."""


@dataclass(frozen=True)
class Speed:
    """Speed relative to float32, dimensionless, > 1 is faster: median and quartiles of rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What one operation in one dtype is here.

    Attributes:
        level: one of ``LEVELS``.
        why: the reason, empty for what is as it should be.
        speed: against float32; None where it was not measured.
    """

    level: str
    why: str = ""
    speed: Speed | None = None


def speed(base: Sequence[float], own: Sequence[float]) -> Speed | None:
    """Return how many times faster ``own`` is than ``base``, from rounds measured in turn.

    The ratio is taken round by round, so that what slows a whole round cancels.

    Examples:
        >>> speed([2.0, 4.0, 2.0], [1.0, 2.0, 1.0])
        Speed(median=2.0, low=2.0, high=2.0)
    """
    ratios = [a / b for a, b in zip(base, own, strict=False) if b > 0]
    if len(ratios) < 2:
        return None
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    return Speed(middle, low, high)


def judge(fact: Fact, base: Fact | None, framework: Framework, machine: Machine) -> Verdict:
    """Return what an operation is here.

    - absent: refused, or its gradients are refused while float32 has them;
    - simulated: absent, and the backend rounds around float32 operations instead;
    - wrong: an error that the format does not explain;
    - emulated: right, but computed in float32 inside and not faster for it: known on a CPU that
      has no arithmetic in the dtype, or shown by a single operation that is slower than float32
      by ``EMULATED``;
    - native: right, and neither of those.

    Args:
        fact: the measurement.
        base: the same operation in float32; None if it was not reached.
        framework: whose operation it is.
        machine: where it ran.
    """
    refused = fact.refused
    if not refused and fact.forward_only and not (base and base.forward_only):
        refused = f"gradients: {fact.forward_only}"
    if refused:
        level, reason = framework.support.get(fact.dtype, ("absent", ""))
        return Verdict("simulated", reason) if level == "simulated" else Verdict("absent", refused)
    ratio = speed(base.seconds, fact.seconds) if base else None
    if fact.reduced and fact.dtype == "float32" and framework.device != "cpu":
        return Verdict("native", "computed as TF32, 10 bits after the point", ratio)
    if not fact.error <= 1:
        what = "gradients" if fact.worst.startswith("d_") else "results"
        times = "not finite" if fact.error == float("inf") else f"off {fact.error:.3g} x the limit"
        return Verdict("wrong", f"{what} {times}", ratio)
    why = _emulated(fact, ratio, framework, machine)
    return Verdict("emulated" if why else "native", why, ratio)


def _emulated(fact: Fact, ratio: Speed | None, framework: Framework, machine: Machine) -> str:
    """Return why an operation is known or shown to be computed in float32; empty if it is not."""
    if fact.dtype not in LOW:
        return ""
    if fact.family not in _COMPOSED and ratio and ratio.high < 1 / EMULATED:
        return f"slower than float32: {ratio.median:.2g}x"
    needs = _INSTRUCTIONS[fact.dtype]
    known = framework.device == "cpu" and machine.flags is not None
    lacks = known and not set(needs) & set(machine.flags or ())
    if lacks and not (ratio and ratio.low > PAYS):
        return f"this CPU has no {fact.dtype} arithmetic"
    return ""


def table(framework: Framework, machine: Machine) -> dict[str, dict[str, Verdict]]:
    """Return the verdicts by operation and dtype, in the order measured."""
    facts = {(fact.family, fact.dtype): fact for fact in framework.facts}
    rows: dict[str, dict[str, Verdict]] = {}
    for (family, dtype), fact in facts.items():
        verdict = judge(fact, facts.get((family, "float32")), framework, machine)
        rows.setdefault(family, {})[dtype] = verdict
    return rows
