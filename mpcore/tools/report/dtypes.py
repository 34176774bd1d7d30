"""Which layer runs in which dtype: what the plan says, and what was seen where one looked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.policy.plan import LayerPlan
    from mpcore.tools.report.result import Observed, ObservedLayer, Result, Run

__all__ = ["DtypeMap", "dtype_maps", "dtype_words"]


@dataclass(frozen=True)
class DtypeMap:
    """The layers of one backend.

    Attributes:
        backend: the backend.
        policies: the heads of the columns.
        observed: by policy, how many layers did what was planned, in words.
        rows: the layer's entry in a plan, and per policy its entry there (None where it has
            none) with what was seen: its words, and its faults.
        unused: policies with a rule of theirs that decided nothing.
        differing: how many layers did something else than planned.
    """

    backend: str
    policies: tuple[str, ...]
    observed: dict[str, str]
    rows: list[tuple[LayerPlan, list[tuple[LayerPlan | None, str, tuple[str, ...]]]]]
    unused: list[tuple[str, str]]
    differing: int


def dtype_maps(result: Result) -> list[DtypeMap]:
    """Return, per backend, the layers and what each does under each policy."""
    planned = [run for run in result.runs if run.plan is not None and run.plan.layers]
    names = dict.fromkeys(run.backend for run in planned)
    return [_map(name, [run for run in planned if run.backend == name]) for name in names]


def _map(backend: str, runs: list[Run]) -> DtypeMap:
    tables = {run.policy: {entry.path: entry for entry in _layers(run)} for run in runs}
    layers = {path: entry for entries in tables.values() for path, entry in entries.items()}
    seen = {run.policy: {row.path: row for row in _observed(run)} for run in runs}
    rows = [
        (
            entry,
            [(t.get(path), *_seen(seen[policy].get(path))) for policy, t in tables.items()],
        )
        for path, entry in layers.items()
    ]
    return DtypeMap(
        backend,
        tuple(tables),
        {run.policy: _judged(run.observed) for run in runs if run.observed},
        rows,
        [(run.policy, rule) for run in runs if run.plan for rule in run.plan.unused_rules],
        sum(run.observed.differing for run in runs if run.observed),
    )


def _layers(run: Run) -> Sequence[LayerPlan]:
    return run.plan.layers if run.plan else ()


def _observed(run: Run) -> Sequence[ObservedLayer]:
    return run.observed.rows if run.observed else ()


def _judged(observed: Observed) -> str:
    return f"{observed.judged - observed.differing} of {observed.judged} as planned"


def _seen(row: ObservedLayer | None) -> tuple[str, tuple[str, ...]]:
    """Return what a layer was seen to compute in and to hand on, and its faults."""
    if row is None:
        return "", ()
    parts = ["+".join(names) for names in (row.kernels, row.output) if names]
    return " > ".join(dict.fromkeys(parts)), row.faults


def dtype_words(result: Result) -> str:
    """Return how many layers compute in what under each policy, and whether they were seen to."""
    words: dict[str, str] = {}
    for run in result.runs:
        counts = Counter(e.compute for e in _layers(run) if e.compute not in ("follow", ""))
        told = [f"{count} in {name}" for name, count in counts.most_common()]
        if told:
            words.setdefault(run.policy, f"{run.policy} {' and '.join(told)}")
    planned = f"layers that compute: {'; '.join(words.values())}." if words else ""
    return " ".join(filter(None, (planned, _seen_words(result.runs))))


def _seen_words(runs: Iterable[Run]) -> str:
    observed = [(run, run.observed) for run in runs if run.observed]
    differing = [(run, seen) for run, seen in observed if seen.differing]
    if not differing:
        return f"All as planned in {len(observed)} observed runs." if observed else ""
    told = [f"{run.backend} {run.policy} {_judged(seen)}" for run, seen in differing]
    return f"Not as planned: {', '.join(told)}."
