"""Whether MindSpore's port of a case gave what torch gave."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["verdict"]

_TOLERANCE = {"float16": 3e-3, "float64": 1e-5, "float32": 4e-5}
_GRADIENT = 3.0  # times as wide: sums of products in another order
_INTEGERS = {"int32", "int64"}
_HUGE = 1e20


def verdict(theirs: dict[str, Any], ours: dict[str, Any], case: dict[str, Any]) -> str:
    """Return "" where both agree, else what differs, one line.

    Args:
        theirs, ours: what torch and MindSpore left of the case.
        case: ``random``: other random numbers are allowed, the distribution is compared;
            ``indices``: int32 may stand for int64.
    """
    with np.errstate(all="ignore"):
        return _said(theirs, ours, case)


def _said(theirs: dict[str, Any], ours: dict[str, Any], case: dict[str, Any]) -> str:
    if "error" in ours:
        return f"raises {ours['error']}"
    if case["random"] and _draws(theirs) and not _draws(ours):
        return "value: nothing is drawn"
    parts = [("value", "values", 1.0), ("gradient", "grads", _GRADIENT), ("eval", "eval", 1.0)]
    for word, key, factor in parts:
        mine, wanted = ours.get(key), theirs.get(key)
        if wanted is None or ("signs" in case["effect"] and word == "gradient"):
            continue  # tests/port asks gradients of what no sign moves
        if mine is None or len(mine) != len(wanted):
            return f"{word}: {len(mine or [])} against {len(wanted)}"
        for place, (one, other) in enumerate(zip(wanted, mine, strict=True)):
            loose = case["random"] and key != "eval"
            said = _differs(one, other, factor, case, word)
            if said and loose:
                said = _alike(one, other, case, word)
            if said:
                return f"{word} {place}: {said}"
    return _state(theirs, ours, case)


def _draws(found: dict[str, Any]) -> bool:
    """Return whether a layer gives other values in training than in evaluation."""
    pairs = zip(found.get("values") or (), found.get("eval") or (), strict=False)
    return any(not np.array_equal(one, other, equal_nan=True) for (_, one), (_, other) in pairs
               if one.dtype.kind == "f" and one.shape == other.shape)  # fmt: skip


def _state(theirs: dict[str, Any], ours: dict[str, Any], case: dict[str, Any]) -> str:
    if "start" not in theirs:
        return ""
    if set(theirs["start"]) != set(ours["start"]):
        return f"parameters {sorted(ours['start'])} against {sorted(theirs['start'])}"
    for name, wanted in theirs["start"].items():
        mine = ours["start"][name]
        if mine.size != wanted.size:
            return f"{name}: {mine.shape} against {wanted.shape}"
        if "starts" in case["effect"] or wanted.size < 4:
            continue
        if np.ptp(wanted) == 0 or np.ptp(mine) == 0:
            if not np.allclose(mine.ravel(), wanted.ravel(), atol=1e-6):
                return f"{name} starts from other values"
        elif wanted.size >= 24 and not 0.6 < mine.std() / wanted.std() < 1.6:
            return f"{name} starts from another distribution: {mine.std():.3g}, {wanted.std():.3g}"
    for name, wanted in theirs["after"].items():
        said = _differs(("", wanted), ("", ours["after"].get(name)), 1.0, case, "")
        if said:
            return f"buffer {name}: {said}"
    return ""


def _kinds(one: str, other: str, case: dict[str, Any]) -> bool:
    if one == other:
        return True
    if case["indices"] and {one, other} == _INTEGERS:
        return True
    return {one, other} in ({"Size", "tuple"}, {"bool", "bool_"})


def _differs(
    wanted: tuple[str, Any], got: tuple[str, Any], factor: float, case: dict[str, Any], word: str
) -> str:
    (kind, one), (mine, other) = wanted, got
    if other is None:
        return "missing"
    if word in ("value", "eval") and not _kinds(kind, mine, case):
        return f"{mine} against {kind}"
    if one.shape != other.shape and not (word != "value" and one.size == other.size):
        return f"shape {other.shape} against {one.shape}"
    if one.dtype.kind in "USO":
        return "" if bool((one == other).all()) else f"{other} against {one}"
    if one.dtype.kind == "c":
        one, other = (np.stack([x.real, x.imag]) for x in (one, other.reshape(one.shape)))
        kind = {"complex128": "float64"}.get(kind, "float32")
    one, other = one.astype(np.float64), other.reshape(one.shape).astype(np.float64)
    if "signs" in case["effect"]:
        one, other = np.abs(one), np.abs(other)
    finite = np.isfinite(one)
    if not (np.isfinite(other) == finite).all():
        return "another place is not finite"
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return "another inf or nan"
    share = _TOLERANCE.get("float16" if "float16" in case["code"] else kind, 1e-5) * factor
    if "rounded" in case["effect"]:
        share *= 16 if word == "gradient" else 8  # what the fact's effect says
    huge = (np.abs(one) > _HUGE) & (not case["edges"])  # beside these the others would not count
    for part in (finite & ~huge, finite & huge):
        size = float(np.abs(one[part]).max(initial=1e-3))
        error = float(np.abs(one[part] - other[part]).max(initial=0.0))
        if error > share * size:
            return f"off by {error:.3g} of {size:.3g}"
    return ""


def _alike(wanted: tuple[str, Any], got: tuple[str, Any], case: dict[str, Any], word: str) -> str:
    """Of random numbers: shape, dtype, mean, spread and share of zeros."""
    (kind, one), (mine, other) = wanted, got
    if not _kinds(kind, mine, case):
        return f"{mine} against {kind}"
    if one.shape != other.shape:
        return f"shape {other.shape} against {one.shape}"
    one, other = one.astype(np.float64), other.astype(np.float64)
    if one.size < 500 or word == "gradient" or not np.isfinite([one.sum(), other.sum()]).all():
        return ""
    spread = max(one.std(), 1e-3)
    if abs(one.mean() - other.mean()) > 6 * spread / np.sqrt(one.size) + 1e-6:
        return f"mean {other.mean():.3g} against {one.mean():.3g}"
    if not 0.75 < (other.std() + 1e-6) / (one.std() + 1e-6) < 1.33:
        return f"spread {other.std():.3g} against {one.std():.3g}"
    if abs((one == 0).mean() - (other == 0).mean()) > 0.06:
        return "another share of zeros"
    if one.min() < 0 <= other.min() or other.min() < 0 <= one.min():
        return "another sign"
    return ""
