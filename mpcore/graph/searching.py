"""Several plans between the fastest and the most exact: a cut for each price of errors.

Every free call is lower or full. The cut takes what that saves or costs in time, the casts between
them, and a price times the error that a lower call brings; with the price at 0 the plan is the
fastest that was predicted, and as it grows the calls that bring most error for their time go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.errors import GraphError
from mpcore.graph.cheapest import sides_of
from mpcore.graph.deciding import Word
from mpcore.graph.flow import by_promotion
from mpcore.graph.ir import is_16_bit
from mpcore.graph.lifting import time_graph
from mpcore.graph.placing import place
from mpcore.policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.timing import Timed

__all__ = ["Candidate", "frontier", "search"]

_PRICES = 24


@dataclass(frozen=True)
class Candidate:
    """One plan of the frontier.

    Attributes:
        plan: where its casts lie.
        words: of every call that has a side: ``"lower"`` or ``"full"``.
        seconds: of calls and casts, as predicted from each alone.
        error: root of the summed squares of what its lower calls bring, as a share of their norms.
    """

    plan: GraphPlan
    words: Mapping[str, Word]
    seconds: float
    error: float

    def rules(self) -> str:
        """Return rules of a policy that decide so, to be put behind one with ``by=graph``."""
        return "; ".join(f"{word.compute} path={name}" for name, word in self.words.items())


def frontier(
    graph: Graph,
    words: Mapping[str, Word],
    low: str,
    gains: Mapping[str, float],
    errors: Mapping[str, float],
    casts: Mapping[str, float],
    *,
    base: float = 0.0,
) -> tuple[Candidate, ...]:
    """Return the plans that no other beats in both time and error, the fastest first.

    Args:
        graph: the graph.
        words: of every call; what a rule or the list binds to a dtype stays bound.
        low: the 16-bit dtype.
        gains: seconds that a call takes less in it; negative where it takes more.
        errors: that a call brings in it, relative to its result.
        casts: seconds of a cast of each value.
        base: seconds of all calls in float32.
    """
    found: list[Candidate] = []
    for price in _prices(gains, errors):
        sides, _ = sides_of(graph, words, low, by_promotion, casts, "")
        free = [n for n, side in sides.bound.items() if side is None and n in gains]
        sides.bound.update({n: False for n, side in sides.bound.items() if side is None})
        sides.bound.update(dict.fromkeys(free))
        sides.weights = {n: price * errors.get(n, 0.0) ** 2 - gains[n] for n in free}
        _, on_low = sides.cut()
        chosen = {
            n: Word("lower" if on_low[n] else "full", "", "search") for n in free if n in on_low
        }
        if any(chosen == one.words for one in found):
            continue
        try:
            plan = place(graph, {**words, **chosen}, low, "exact")
        except GraphError:
            continue  # the framework has no such kernel
        lower = [n for n in chosen if is_16_bit(plan.compute.get(n, ""))]
        spent = base - sum(gains.get(n, 0.0) for n in lower)
        spent += sum(casts.get(cast.value, 0.0) for cast in plan.casts)
        error = sum(errors.get(n, 0.0) ** 2 for n in lower) ** 0.5
        found.append(Candidate(plan, chosen, spent, error))
    return _best(found)


def search(
    model: Any, policy: Policy | str, *example: Any, timed: Timed | None = None
) -> tuple[Candidate, ...]:
    """Return plans of a model between the fastest and the most exact, from times measured here.

    The rules of ``policy`` bind every plan; what its list says is free. A plan goes into a policy
    by ``rules()``; take the best few on whole steps before you believe their times.

    Args:
        model: a model that is one graph, of a framework whose calls are timed.
        policy: whose rules hold, and whose dtype is searched.
        example: what the model is called with.
        timed: what ``time_graph`` found of it; measured if None.

    Raises:
        GraphError: it is several graphs, or its calls cannot be timed.
    """
    parsed = Policy.of(policy)
    if timed is None:
        several = time_graph(model, parsed, *example)
        if len(several) != 1:
            msg = f"`model` must be one graph to be searched, it is {len(several)}"
            raise GraphError(msg)
        (timed,) = several
    plan = timed.plan
    gains, errors, base = {}, {}, 0.0
    for call in timed.calls:
        if call.other is None:
            base += call.seconds
            continue
        lowered = is_16_bit(call.compute)
        full, less = (call.other, call.seconds) if lowered else (call.seconds, call.other)
        gains[call.name], errors[call.name] = full - less, call.error or 0.0
        base += full
    words = {n: _word(plan, n) for n in plan.graph.node}
    gains = {n: gain for n, gain in gains.items() if words[n].compute == "follow"}
    return frontier(plan.graph, words, parsed.compute, gains, errors, _casts(timed), base=base)


def _word(plan: GraphPlan, name: str) -> Word:
    """Return what is bound by a rule as it is; the rest is free, or follows."""
    why, compute = plan.rules.get(name, ""), plan.compute.get(name, "-")
    if why.startswith("rule: ") and "float" in compute:
        return Word(compute, "", why)
    return Word("follow", "", "free")


def _casts(timed: Timed) -> dict[str, float]:
    """Return the seconds of a cast of each value: as measured, or as what is read of others."""
    value, found = timed.plan.graph.value, dict(timed.values)
    for cast in timed.casts:
        found.setdefault(cast.cast.value, cast.seconds)
    sizes = sum(value[name].elements for name in found)
    rate = sum(found.values()) / sizes if sizes else 0.0
    return {name: found.get(name, rate * each.elements) for name, each in value.items()}


def _prices(gains: Mapping[str, float], errors: Mapping[str, float]) -> list[float]:
    """Return prices of a squared error, between where none counts and where each does."""
    worth = [gain / errors[n] ** 2 for n, gain in gains.items() if gain > 0 and errors.get(n)]
    if not worth:
        return [0.0]
    first, last = min(worth) / 10, max(worth) * 10
    step = (last / first) ** (1 / (_PRICES - 2))
    return [0.0, *(first * step**i for i in range(_PRICES - 1))]


def _best(found: list[Candidate]) -> tuple[Candidate, ...]:
    """Return those that no other beats in time and in error."""
    kept: list[Candidate] = []
    for one in sorted(found, key=lambda c: (c.seconds, c.error)):
        if not kept or one.error < kept[-1].error:
            kept.append(one)
    return tuple(kept)
