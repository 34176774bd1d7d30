"""Which layer runs in which dtype: what the plan says, and what was seen where one looked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

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
    rows: list[tuple[dict[str, Any], list[tuple[Any, str, tuple[str, ...]]]]]
    unused: list[tuple[str, str]]
    differing: int


def dtype_maps(result: dict[str, Any]) -> list[DtypeMap]:
    """Return, per backend, the layers and what each does under each policy."""
    planned = [run for run in result["runs"] if (run.get("plan") or {}).get("layers")]
    names = dict.fromkeys(run["backend"] for run in planned)
    return [_map(name, [run for run in planned if run["backend"] == name]) for name in names]


def _map(backend: str, runs: list[dict[str, Any]]) -> DtypeMap:
    by_policy = {run["policy"]: run for run in runs}
    tables = {p: {e["path"]: e for e in run["plan"]["layers"]} for p, run in by_policy.items()}
    layers = {path: entry for entries in tables.values() for path, entry in entries.items()}
    seen = {p: _rows(run) for p, run in by_policy.items()}
    return DtypeMap(
        backend,
        tuple(by_policy),
        {p: _judged(run["observed"]) for p, run in by_policy.items() if run.get("observed")},
        [
            (
                entry,
                [
                    (entries.get(path), *_seen(seen[policy].get(path)))
                    for policy, entries in tables.items()
                ],
            )
            for path, entry in layers.items()
        ],
        [(p, rule) for p, r in by_policy.items() for rule in r["plan"].get("unused_rules") or []],
        sum((run.get("observed") or {}).get("differing") or 0 for run in runs),
    )


def _rows(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows = (run.get("observed") or {}).get("rows") or []
    return {row["path"]: row for row in rows}


def _judged(observed: dict[str, Any]) -> str:
    judged, differing = observed.get("judged") or 0, observed.get("differing") or 0
    return f"{judged - differing} of {judged} as planned"


def _seen(row: dict[str, Any] | None) -> tuple[str, tuple[str, ...]]:
    """Return what a layer was seen to compute in and to hand on, and its faults."""
    if row is None:
        return "", ()
    parts = ["+".join(row[key]) for key in ("kernels", "output") if row.get(key)]
    return " > ".join(dict.fromkeys(parts)), tuple(row.get("faults") or ())


def dtype_words(result: dict[str, Any]) -> str:
    """Return how many layers compute in what under each policy, and whether they were seen to."""
    words: dict[str, str] = {}
    for run in result["runs"]:
        layers = (run.get("plan") or {}).get("layers") or []
        counts = Counter(e["compute"] for e in layers if e["compute"] not in ("follow", ""))
        told = [f"{count} in {name}" for name, count in counts.most_common()]
        if told:
            words.setdefault(run["policy"], f"{run['policy']} {' and '.join(told)}")
    planned = f"layers that compute: {'; '.join(words.values())}." if words else ""
    return " ".join(filter(None, (planned, _seen_words(result["runs"]))))


def _seen_words(runs: list[dict[str, Any]]) -> str:
    observed = [run for run in runs if run.get("observed")]
    apart = [run for run in observed if run["observed"].get("differing")]
    if not apart:
        return f"All as planned in {len(observed)} observed runs." if observed else ""
    told = [f"{run['backend']} {run['policy']} {_judged(run['observed'])}" for run in apart]
    return f"Not as planned: {', '.join(told)}."
