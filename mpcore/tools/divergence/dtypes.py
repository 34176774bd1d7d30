"""Where two sides compute in other dtypes, and what the plans say to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.divergence.align import Pair
    from mpcore.tools.divergence.evidence import Evidence

__all__ = ["DtypeFact", "OpFact", "layer_facts", "op_facts", "planned"]


@dataclass(frozen=True)
class DtypeFact:
    """A layer that runs in other dtypes on the two sides.

    Attributes:
        path: in the reference.
        own_path: in the other side.
        seen: what ran, (reference, own), in words.
        plans: entries of the two plans; empty where a plan has none.
        planned: whether the plans differ.
        faults: where the own side, or else the reference, does not do what its plan says.
    """

    path: str
    own_path: str
    seen: tuple[str, str]
    plans: tuple[dict[str, Any], dict[str, Any]]
    planned: bool
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpFact:
    """A function outside of layers that runs in other dtypes on the two sides.

    Attributes:
        path: of the container it was called in; ``"(loss)"`` outside of the model.
        name: of the function.
        op: neutral op; ``""`` for none.
        seen: dtypes of its kernels, (reference, own).
        planned: whether the plans say so.
    """

    path: str
    name: str
    op: str
    seen: tuple[str, str]
    planned: bool


def planned(side: Evidence, path: str) -> dict[str, Any]:
    """Return the entry of a plan for a layer; empty where it has none."""
    return next((dict(e) for e in side.plan.get("layers", ()) if e["path"] == path), {})


def layer_facts(reference: Evidence, own: Evidence, pairs: Sequence[Pair]) -> dict[str, DtypeFact]:
    """Return the layers whose dtypes differ, by path of the reference."""
    same_backend = reference.backend == own.backend
    seen = [_seen(side) for side in (reference, own)]
    found: dict[str, DtypeFact] = {}
    for pair in pairs:
        a, b = pair.reference, pair.own
        if a is None or b is None or a.category == "container" or a.path in found:
            continue
        plans = planned(reference, a.path), planned(own, b.path)
        words = ("compute", "output")
        other_plan = all(plans) and any(plans[0].get(w) != plans[1].get(w) for w in words)
        went = [call.outputs[0].dtype if call.outputs else "" for call in (a, b)]
        ran = [s.get(call.path, ((), ()))[0] for s, call in zip(seen, (a, b), strict=True)]
        other_run = same_backend and (went[0] != went[1] or (all(ran) and ran[0] != ran[1]))
        faults = seen[1].get(b.path, ((), ()))[1] if not same_backend else ()
        known = seen[0].get(a.path, ((), ()))[1]
        faults = tuple(f for f in faults if f not in known)
        if other_plan or other_run or faults:
            texts = tuple(
                f"computed in {'+'.join(r) or '?'}, handed on {w or '?'}"
                for r, w in zip(ran, went, strict=True)
            )
            found[a.path] = DtypeFact(
                a.path, b.path, (texts[0], texts[1]), plans, other_plan, faults
            )
    return found


def _seen(side: Evidence) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return (dtypes of kernels, faults against the plan) by layer."""
    found = {}
    for row in side.observed.get("layers", ()):
        calls = (row.get("seen") or {}).get("calls", ())
        kernels = tuple(dict.fromkeys(k for call in calls for k in call.get("kernels", ())))
        found[row["path"]] = kernels, tuple(row.get("faults", ()))
    return found


def op_facts(reference: Evidence, own: Evidence) -> list[OpFact]:
    """Return the functions outside of layers whose dtypes differ; within one backend only."""
    if reference.backend != own.backend:
        return []
    theirs, mine = _by_name(reference), _by_name(own)
    found = []
    for key, rows in theirs.items():
        for a, b in zip(rows, mine.get(key, ()), strict=False):
            kernels = [sorted(row["seen"].get("kernels", ())) for row in (a, b)]
            if all(kernels) and kernels[0] != kernels[1]:
                op = a["seen"].get("op", "")
                plans = [a.get("compute", ""), b.get("compute", "")]
                texts = "+".join(kernels[0]), "+".join(kernels[1])
                found.append(OpFact(key[0], key[1], op, texts, plans[0] != plans[1]))
    return found


def _by_name(side: Evidence) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in side.observed.get("ops", ()):
        found.setdefault((row["seen"].get("path", ""), row["seen"]["name"]), []).append(row)
    return found
