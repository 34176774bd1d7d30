"""Dtypes that differ: by rule, by op list, or without anybody having said so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import PolicyError
from mpcore.policy.policy import Policy
from mpcore.tools.divergence.distance import is_float
from mpcore.tools.divergence.root_cause import RootCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.tools.divergence.align import Pair
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.root_cause import Case
    from mpcore.tools.divergence.rows import Match

__all__ = ["from_casts", "from_dtypes", "from_ops"]

_ADDS_UP = ("norm", "softmax", "loss")
_REDUCTIONS = [
    "sum",
    "mean",
    "var",
    "std",
    "norm",
    "logsumexp",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "layer_norm",
    "group_norm",
    "batch_norm",
    "rms_norm",
    "cumsum",
    "prod",
    "softplus",
    "binary_cross_entropy",
]


def from_dtypes(case: Case, match: Match) -> Iterator[RootCause]:
    """Yield why a layer runs in other dtypes than in the reference."""
    fact = case.facts.get(match.path)
    if fact is None:
        return
    call = match.pair.reference
    seen = f"the reference {fact.seen[0]}; this side {fact.seen[1]}"
    if fact.planned:
        rules = [plan.get("rule", "?") for plan in fact.plans]
        kind = "op list" if _by_op(case.reference) or _by_op(case.own) else "dtype rule"
        yield RootCause(
            kind,
            fact.path,
            fact.own_path,
            "forward",
            (seen, f"decided by {rules[0]!r} there and by {rules[1]!r} here"),
            f"give both the same rule for {fact.path}: that of the reference is {rules[0]!r}",
            "sure",
        )
        return
    if _ops_planned(case) and not fact.faults:
        yield RootCause(
            "op list",
            fact.path,
            fact.own_path,
            "forward",
            (seen, "ops inside of it are planned in other dtypes"),
            "give both the same rules for ops",
            "sure",
        )
        return
    adds_up = call is not None and call.category in _ADDS_UP
    yield RootCause(
        "reduction dtype" if adds_up else "missing cast",
        fact.path,
        fact.own_path,
        "forward",
        (seen, *fact.faults, "the two plans say the same of it"),
        f"cast inside of {fact.own_path} as the reference does",
        "sure" if case.tolerances.same_backend else "likely",
    )


def from_casts(match: Match) -> Iterator[RootCause]:
    """Yield a cast that code between two layers makes on one side only."""
    dtypes = _input_dtypes(match.pair)
    if dtypes[0] != dtypes[1]:
        own = match.pair.own
        yield RootCause(
            "missing cast",
            match.path,
            own.path if own else "",
            "forward",
            (
                f"{match.path} is given {'+'.join(dtypes[0])} in the reference and "
                f"{'+'.join(dtypes[1])} here, though no layer before it parts",
            ),
            f"cast what {own.path if own else match.path} is given to {dtypes[0][0]}",
            "sure",
        )


def _input_dtypes(pair: Pair) -> list[list[str]]:
    """Return the dtypes of the floats that two aligned calls were given."""
    calls = (pair.reference, pair.own)
    return [[x.dtype for x in call.inputs if is_float(x)] if call else [] for call in calls]


def from_ops(case: Case, path: str, phase: str) -> Iterator[RootCause]:
    """Yield functions outside of layers, called at ``path``, that run in other dtypes."""
    for fact in case.ops:
        if fact.path != path:
            continue
        kind = "missing cast"
        if fact.planned and not _same_policy(case):
            kind = "op list"
        elif fact.name.rpartition(".")[2].strip("_") in _REDUCTIONS:
            kind = "reduction dtype"
        where = path or "the model"
        yield RootCause(
            kind,
            path,
            path,
            phase,
            (f"{fact.name} in {where} runs in {fact.seen[0]} there and in {fact.seen[1]} here",),
            f"run {fact.name} in {where} in {fact.seen[0]}",
            "sure",
        )


def _same_policy(case: Case) -> bool:
    return case.reference.policy == case.own.policy


def _ops_planned(case: Case) -> bool:
    """Return whether the two policies say other things of ops."""
    plans = [
        {e["op"]: (e["compute"], e["output"]) for e in side.plan.get("ops", ())}
        for side in (case.reference, case.own)
    ]
    return plans[0] != plans[1] and (_by_op(case.reference) or _by_op(case.own))


def _by_op(side: Evidence) -> bool:
    try:
        return Policy.parse(side.policy).by == "op"
    except PolicyError:
        return False  # of another version: its rules are told all the same
