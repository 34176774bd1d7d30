"""From what came of cases to what the porter may say: the table that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fact_recipes import BESIDE

from mpcore_port.mindspore.checked import signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fact_run import Found

__all__ = ["clashes", "row_of", "table_of"]

_GOOD = "same"


def table_of(found: Sequence[Found]) -> dict[str, Any]:
    """Return the rows of all names that were run."""
    by_name: dict[str, list[Found]] = {}
    for one in found:
        by_name.setdefault(one.case.name, []).append(one)
    return {name: row_of(ones) for name, ones in sorted(by_name.items())}


def row_of(found: Sequence[Found]) -> dict[str, Any]:
    """Return what was compared of one name.

    ``params``: for each parameter the kinds of values that gave torch's numbers, by keyword and by
    position, and those that did not (``wrong``); ``with``: what it was given together with;
    ``dtypes``, ``silent``, ``edges``: how the plain call went there; ``fails``: why the plain call
    is not to be trusted, and then nothing else is said.
    """
    base = [one for one in found if one.case.why in ("base", "shapes")]
    wrong = next((one for one in base if one.end not in (_GOOD, "invalid")), None)
    ran = [one for one in found if one.end != "invalid"]
    row: dict[str, Any] = {"cases": len(ran), "same": sum(one.end == _GOOD for one in ran)}
    if wrong is not None or not any(one.end == _GOOD for one in base):
        return row | {"fails": f"{wrong.case.code}: {wrong.words}" if wrong else "not run"}
    row["params"] = _parameters(found)
    sign = signature(found[0].case.name)
    known = {param.name for param in sign.params} if sign else set()
    beside = {name: sorted(BESIDE.get(name, ())) for name in row["params"]}
    row["with"] = {
        name: ones
        for name, ones in beside.items()
        if ones and set(ones) <= known and not _went_alone(name, ones, found)
    }
    plain = [one for one in found if one.case.why == "dtype"]
    row["dtypes"] = sorted({"float32"} | {o.case.dtype for o in plain if o.end == _GOOD})
    row["silent"] = sorted(o.case.dtype for o in plain if o.end == "differs")
    edges = [one for one in found if one.case.why == "edges"]
    row["edges"] = next((o.words for o in edges if o.end not in (_GOOD, "invalid")), "")
    return {key: value for key, value in row.items() if value not in ([], "", {})}


def _went_alone(name: str, others: Sequence[str], found: Sequence[Found]) -> bool:
    """Return whether a call gave torch's numbers that has a parameter without what is beside it."""
    return any(
        one.end == _GOOD
        and one.case.why == "moved"
        and any(moved[:2] == (name, "keyword") for moved in one.case.moved)
        and not any(f"{other}=" in one.case.code for other in others)
        for one in found
    )


def _parameters(found: Sequence[Found]) -> dict[str, Any]:
    tried: dict[tuple[str, str, str], list[Found]] = {}
    for one in found:
        if one.case.why in ("base", "moved") and one.end != "invalid":
            for moved in one.case.moved:
                tried.setdefault(moved, []).append(one)
    params: dict[str, dict[str, list[str]]] = {}
    for (name, way, kind), ones in tried.items():
        ways = params.setdefault(name, {})
        held = ways.setdefault(way, [])
        good = [one for one in ones if one.end == _GOOD]
        if len(good) == len(ones):
            held.append(kind)
            continue
        ways.setdefault("wrong", []).append(kind)
        if kind.endswith(("int", "float")) or " of " in kind:
            held += [f"={one.case.value_of(name)}" for one in good if one.case.value_of(name)]
    for ways in params.values():
        for kinds in ways.values():
            kinds[:] = sorted(set(kinds))
    return params


def clashes(found: Sequence[Found]) -> list[Found]:
    """Return calls with several parameters that differ, though each alone is right."""
    rows = table_of(found)
    bad = []
    for one in found:
        if one.case.why != "together" or one.end not in ("differs", "raises"):
            continue
        params = rows[one.case.name].get("params", {})
        if all(kind in params.get(p, {}).get(way, []) for p, way, kind in one.case.moved):
            bad.append(one)
    return bad
