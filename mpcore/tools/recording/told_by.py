"""Causes that a recording tells itself: settings of the optimizer, and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.tools.divergence.align import align_weights
from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.inspection import difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpcore.tools.divergence.evidence import Evidence

__all__ = ["from_gradients", "from_settings"]

_SCHEDULES = "rate"
_PARALLEL = 1e-4  # one minus the cosine of gradients that are multiples of each other
_FACTOR = 1e-3  # relative: factors of arrays that are one factor
_AGREE = 1e-3  # relative: gradients of layers that are the same
_LEFT = 0.02  # relative: what a fit of two gradients may leave


def from_settings(
    a: Evidence, b: Evidence, before: tuple[Evidence, Evidence] | None
) -> Iterator[RootCause]:
    """Yield what the two optimizers are set to otherwise, as the scripts had it in that step.

    Args:
        a: a step of the reference.
        b: of the other run.
        before: the step before it, of both, which agreed; None if it is the first.
    """
    told = [side.steps[0].get("optimizer") or {} for side in (a, b)]
    if a.backend != b.backend or not all(told):
        return
    if told[0]["type"] != told[1]["type"]:
        names = f"the optimizer is {told[0]['type']} there and {told[1]['type']} here"
        yield _of_optimizer("optimizer constants", [names], f"use {told[0]['type']} on both sides")
        return
    sides = [_by_array(one) for one in told]
    common = [path for path in sides[0] if path in sides[1]]
    if not common and len(sides[0]) == len(sides[1]):  # other names: one after the other
        sides[1] = dict(zip(sides[0], sides[1].values(), strict=True))
        common = list(sides[0])
    lone = [path for path in (*sides[0], *sides[1]) if (path in sides[0]) != (path in sides[1])]
    if lone and common:
        who = "the reference" if lone[0] in sides[0] else "this side"
        sentence = f"only {who} gives {', '.join(lone[:3])} to its optimizer"
        fix = "give the same parameters to both optimizers"
        yield _of_optimizer("other setting", [sentence], fix, lone[0].rpartition(".")[0])
    found: dict[tuple[str, Any, Any], list[str]] = {}
    for path in common:
        for name in {**sides[0][path], **sides[1][path]}:
            values = sides[0][path].get(name), sides[1][path].get(name)
            if values[0] != values[1]:
                found.setdefault((name, *values), []).append(path)
    if found:
        yield _of_settings(found, len(common), a, b, agreed=before is not None)


def _of_settings(
    found: Mapping[tuple[str, Any, Any], list[str]],
    count: int,
    a: Evidence,
    b: Evidence,
    *,
    agreed: bool,
) -> RootCause:
    sentences = []
    for (name, there, here), paths in found.items():
        some = "" if len(paths) == count else f" for {', '.join(paths[:2])}"
        more = f" and {len(paths) - 2} more" if some and len(paths) > 2 else ""
        sentences.append(f"{name} is {_word(there)} there and {_word(here)} here{some}{more}")
    names = {name for name, *_ in found}
    kind = "optimizer constants"
    if any(name.startswith("clipping") for name in names):
        kind = "clipping"
    elif names == {_SCHEDULES}:
        kind, sentence = _rates(a, b)
        kind = "schedule" if agreed else kind
        sentences += [sentence] if sentence else []
    name, there, _ = next(iter(found))
    fix = (
        f"set {name} to {_word(there)}" if kind != "schedule" else "use one schedule on both sides"
    )
    layers = {path for paths in found.values() for path in paths}
    where = "" if len(layers) == count else min(layers).rpartition(".")[0]
    return _of_optimizer(kind, sentences, fix, where)


def _rates(a: Evidence, b: Evidence) -> tuple[str, str]:
    """Return whether the rates are constants or schedules, and how these lie to each other."""
    rates = [
        [step["optimizer"]["groups"][0].get(_SCHEDULES) for step in side.steps if step["optimizer"]]
        for side in (a, b)
    ]
    if all(len(set(one)) == 1 for one in rates) and len(rates[0]) > 1:
        return "optimizer constants", ""
    for first, second, word in ((0, 1, "earlier"), (1, 0, "later")):
        shifted = rates[first][1:], rates[second][:-1]
        if len(shifted[0]) and np.allclose(*shifted, rtol=1e-6):
            return "schedule", f"this side has each rate one step {word}"
    return "schedule", ""


def _by_array(told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        path: {name: value for name, value in group.items() if name != "arrays"}
        for group in told["groups"]
        for path in group["arrays"]
    }


def _word(value: Any) -> str:
    return (
        f"{value:.6g}" if isinstance(value, float) else "not set" if value is None else str(value)
    )


def _of_optimizer(kind: str, sentences: list[str], fix: str, layer: str = "") -> RootCause:
    where = layer or "(optimizer)"
    return RootCause(kind, where, where, "update", tuple(sentences), fix, "sure")


def from_gradients(
    a: Evidence, b: Evidence, before: tuple[Evidence, Evidence] | None
) -> Iterator[RootCause]:
    """Yield why parameters get other gradients though the layers hand down the same."""
    pairs = list(_gradients(a, b))
    for path, left, right in pairs:
        sizes = [float(np.abs(x).max(initial=0.0)) for x in (left, right)]
        if (sizes[0] == 0) != (sizes[1] == 0):
            who = "this side" if sizes[1] == 0 else "the reference"
            sentence = f"{path} gets no gradient in {who}, and one of {max(sizes):.1e} on the other"
            fix = "look for a frozen parameter, a detach or a stopped gradient"
            where = path.rpartition(".")[0] or path
            told = (where, where, "backward", (sentence,), fix, "likely")
            yield RootCause("other setting", *told)
            return
    if not pairs or not _layers_agree(a, b):
        return
    sides = [np.concatenate([np.ravel(pair[n]) for pair in pairs]).astype(float) for n in (1, 2)]
    if not np.isfinite(sides).all() or not all(np.linalg.norm(x) for x in sides):
        return
    factor = float(sides[0] @ sides[1]) / float(sides[0] @ sides[0])
    away = float(np.linalg.norm(sides[1] - factor * sides[0]) / np.linalg.norm(sides[1]))
    if away < _FACTOR:
        if abs(factor - 1) > _FACTOR:
            yield _clipped(factor)
        return
    if before is None:
        return
    earlier = {path: left for path, left, _ in _gradients(before[1], before[1])}
    own = [path for path, *_ in _gradients(b, b)]
    if list(earlier) != own:
        return
    last = np.concatenate([x.ravel() for x in earlier.values()]).astype(float)
    if last.size != sides[1].size or not np.linalg.norm(last):
        return
    fitted, *_ = np.linalg.lstsq(np.stack([sides[0], last], 1), sides[1], rcond=None)
    rest = np.linalg.norm(sides[1] - fitted[0] * sides[0] - fitted[1] * last)
    if rest < _LEFT * np.linalg.norm(sides[1]) and fitted[1] > _LEFT:
        yield _left_over(fitted, float(rest / np.linalg.norm(sides[1])))


def _clipped(factor: float) -> RootCause:
    sentence = (
        f"all gradients that the optimizer gets are {factor:.5g} times the reference's, those "
        "of layers are the same: they are scaled after the backward pass"
    )
    fix = "clip by the same norm on both sides, or average the parts of a batch alike"
    return RootCause("clipping", "(optimizer)", "(optimizer)", "update", (sentence,), fix, "likely")


def _left_over(fitted: Any, rest: float) -> RootCause:
    sentence = (
        f"the gradients that the optimizer gets are {fitted[0]:.4g} times the reference's plus "
        f"{fitted[1]:.4g} times those of the step before (up to {rest:.1e}); the layers' agree"
    )
    fix = "call zero_grad before each backward pass: gradients of the step before are left over"
    where = "(optimizer)"
    return RootCause("other setting", where, where, "update", (sentence,), fix, "likely")


def _gradients(a: Evidence, b: Evidence) -> Iterator[tuple[str, Any, Any]]:
    if not a.grads or not b.grads:
        return
    for left, right in align_weights(a.grads[0], b.grads[0]):
        for name, array in left.arrays.items():
            other = right.arrays.get(name)
            if other is not None and other.shape == array.shape:
                yield f"{left.path}.{name}" if left.path else name, array, other


def _layers_agree(a: Evidence, b: Evidence) -> bool:
    """Return whether the gradients that layers got agree, as far as their names do."""
    seen = 0
    sides = [side.inspection.layers() for side in (a, b)]
    for path, calls in sides[0].items():
        for one, other in zip(calls, sides[1].get(path, ()), strict=False):
            for x, y in zip(one.grad_outputs, other.grad_outputs, strict=False):
                if x is not None and y is not None and one.category != "container":
                    seen += 1
                    if difference(x, y).relative > _AGREE:
                        return False
    return seen > 0
