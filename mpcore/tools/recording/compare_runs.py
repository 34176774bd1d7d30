"""Two recorded runs beside each other: the first step and layer that part, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.checkpoint.layer_weights import relative_difference
from mpcore.errors import CheckpointError, ExperimentError
from mpcore.tools.divergence.align import align_weights
from mpcore.tools.divergence.distance import apart
from mpcore.tools.divergence.files import load
from mpcore.tools.divergence.find import Verdict, find
from mpcore.tools.divergence.root_cause import RootCause
from mpcore.tools.recording.alone import judged, reproduced
from mpcore.tools.recording.moved import moved_outside
from mpcore.tools.recording.record import FORMAT
from mpcore.tools.recording.told_by import from_gradients, from_settings
from mpcore.tools.recording.told_by_ops import from_ops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.recording.judge import Judgement

__all__ = ["Runs", "compare_runs"]

_SAME_START = 1e-6  # relative: weights that were handed over, in another layout
_DRIFT = 30.0  # times the distance of the weights: how far it may be carried within one step
_OWN = ("input", "forward", "loss")  # phases that other ranks have no part in
_TOGETHER = 3  # steps from which an optimizer's constants are told


@dataclass(frozen=True)
class Runs:
    """What two runs have to do with each other.

    Attributes:
        verdict: in one line.
        same: whether all common steps agree.
        step: the first that parts, as the scripts count; None if none does.
        found: what was found there.
        steps: steps that both recorded.
        drift: relative distance of the weights before each of them, the worst layer's.
        advice: what to do next; ``""`` for nothing.
        judgement: which side is off in the layer where they part; None where it was not replayed.
        alone: why it was not replayed, ``""`` where it was; or what became of its script.
    """

    verdict: str
    same: bool
    step: int | None
    found: Verdict | None
    steps: tuple[int, ...]
    drift: tuple[float, ...]
    advice: str = ""
    judgement: Judgement | None = None
    alone: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "verdict": self.verdict,
            "same": self.same,
            "step": self.step,
            "found": None if self.found is None else self.found.to_dict(),
            "steps": list(self.steps),
            "drift": [float(value) for value in self.drift],
            "advice": self.advice,
            "judgement": None if self.judgement is None else self.judgement.to_dict(),
            "alone": self.alone,
        }


def compare_runs(
    reference: Path, own: Path, *, replay: bool = False, reproduce: Path | None = None
) -> dict[int, Runs]:
    """Return what the runs have to do with each other, by rank.

    Args:
        reference: folder of a run.
        own: of the other.
        replay: run the layer where they part in float64, to say which side is off.
        reproduce: script to write of the layer where the first rank that differs parts.

    Raises:
        CheckpointError: a folder is no run, or the runs have no rank or no step in common.
    """
    ranks = [_ranks(folder) for folder in (reference, own)]
    common = sorted(set(ranks[0]) & set(ranks[1]))
    if not common:
        msg = f"the runs have no rank in common: {sorted(ranks[0])} against {sorted(ranks[1])}"
        raise CheckpointError(msg)
    runs = _led({rank: _compare(ranks[0][rank], ranks[1][rank]) for rank in common})
    if replay or reproduce is not None:
        rank = next((r for r in _first_parted(runs)), None)
        if rank is not None:
            folders = ranks[0][rank], ranks[1][rank]
            runs[rank] = _alone(runs[rank], folders, replay=replay, reproduce=reproduce)
    return runs


def _first_parted(runs: dict[int, Runs]) -> list[int]:
    found = [r for r, each in runs.items() if each.found is not None and each.found.first]
    return sorted(found, key=lambda r: (runs[r].step or 0, "behind rank" in runs[r].verdict, r))


def _alone(runs: Runs, folders: tuple[Path, Path], *, replay: bool, reproduce: Path | None) -> Runs:
    if runs.found is None or runs.found.first is None or runs.step is None:
        return runs
    if not runs.found.rows:  # weights that were set: no layer is off
        return runs
    first, number = runs.found.first, runs.step
    steps = load(folders[0] / f"step-{number:06d}"), load(folders[1] / f"step-{number:06d}")
    if replay:
        try:
            runs = replace(runs, judgement=judged(folders, steps, first))
        except ExperimentError as exc:
            runs = replace(runs, alone=f"not replayed: {exc}")
    if reproduce is not None:
        runs = replace(runs, alone=reproduced(folders, steps, first, reproduce))
    return runs


def _led(runs: dict[int, Runs]) -> dict[int, Runs]:
    """Return the ranks, those whose gradients alone differ behind the rank that parted before.

    Ranks average their gradients: what one makes of its own batch is in the update of all.
    """
    parted = {r: each for r, each in runs.items() if each.found is not None and each.found.first}
    own = [
        (each.step, rank)
        for rank, each in parted.items()
        if each.found and each.found.first and each.found.first.phase in _OWN
    ]
    if not own:
        return runs
    step, leader = min((step or 0, rank) for step, rank in own)
    words = parted[leader].verdict
    for rank, each in parted.items():
        first = each.found.first if each.found else None
        if first is None or first.phase in _OWN or (each.step or 0) < step or each.found is None:
            continue
        sentence = f"rank {leader} parts before ({words}), and its gradients are averaged in"
        cause = RootCause(
            "unknown",
            first.layer,
            first.own_layer,
            first.phase,
            (sentence,),
            f"look at rank {leader} first",
            "possible",
        )
        found = replace(each.found, root_causes=(cause,))
        verdict = f"step {each.step}, different: {first.phase}, {first.layer}, behind rank {leader}"
        runs[rank] = replace(each, verdict=verdict, found=found, advice="")
    return runs


def _ranks(folder: Path) -> dict[int, Path]:
    found = {}
    for about in sorted(folder.glob("rank-*/run.json")):
        told = json.loads(about.read_text(encoding="utf-8"))
        if told.get("format") == FORMAT:
            found[int(about.parent.name.removeprefix("rank-"))] = about.parent
    if not found:
        msg = f"`run` must be a folder that mp.record wrote, got {str(folder)!r}"
        raise CheckpointError(msg)
    return found


def _compare(reference: Path, own: Path) -> Runs:
    numbers = [
        {int(p.parent.name.removeprefix("step-")) for p in side.glob("step-*/evidence.safetensors")}
        for side in (reference, own)
    ]
    steps = sorted(numbers[0] & numbers[1])
    if not steps:
        msg = f"the runs have no step in common: {len(numbers[0])} against {len(numbers[1])} steps"
        raise CheckpointError(msg)
    starts = load(reference / "start"), load(own / "start")
    start = _started_apart(*starts)
    if start:
        return Runs(
            start,
            same=False,
            step=steps[0],
            found=None,
            steps=tuple(steps),
            drift=(),
            advice=f"give the second script mp.record(..., start={str(reference.parent)!r}), which "
            "hands the first weights over, and run it again",
        )
    drift: list[float] = []
    before: tuple[Evidence, Evidence] | None = None
    for number in steps:
        a, b = (_together(side, number) for side in (reference, own))
        drift.append(_drift(a, b))
        found = moved_outside(starts if before is None else before, (a, b))
        if found is not None:
            return _parted(found, a, b, number, steps, drift)
        found = find(a, b, _closer(a, b), later=False)
        if not found.agrees and not _carried(found, drift[-1]):
            found = _explained(found, a, b, before)
            return _parted(found, a, b, number, steps, drift)
        before = a, b
    verdict = f"same: {len(steps)} steps, weights at most {max(drift):.1e} apart before a step"
    return Runs(verdict, same=True, step=None, found=None, steps=tuple(steps), drift=tuple(drift))


def _explained(
    found: Verdict, a: Evidence, b: Evidence, before: tuple[Evidence, Evidence] | None
) -> Verdict:
    """Return what was found with the cause that the recordings tell, where they do."""
    first, known = found.first, found.root_causes
    if first is None:
        return found
    told: list[RootCause] = []
    if first.phase in ("backward", "update"):
        told = list(from_gradients(a, b, before)) or list(from_settings(a, b, before))
    elif first.phase == "forward" and (not known or known[0].kind == "unknown"):
        told = list(from_ops(a, b, first))
    if not told:
        return found
    best = told[0]
    rest = tuple(c for c in known if c.kind not in (best.kind, "unknown"))[:1]
    first = replace(first, phase=best.phase, layer=best.layer, own_layer=best.own_layer)
    verdict = f"different: {best.phase}, {best.layer or 'the model'}, {best.kind}"
    return replace(found, first=first, root_causes=(*told, *rest), verdict=verdict)


def _closer(a: Evidence, b: Evidence) -> Callable[[frozenset[str]], tuple[Evidence, Evidence]]:
    """Return what shows both sides closely: as they are, with what was kept whole."""
    return lambda _: (a, b)


def _parted(
    found: Verdict, a: Evidence, b: Evidence, number: int, steps: list[int], drift: list[float]
) -> Runs:
    how = (
        f"one step in sketches, {len(found.rows)} layers side by side; tolerances are those of "
        "rounding"
    )
    found, advice = replace(found, how=how if found.rows else "weights side by side"), ""
    unnamed = not found.root_causes or found.root_causes[0].kind == "unknown"
    layers = _worth_keeping(found, a, b) if unnamed else []
    if layers:
        keep = ", ".join(repr(path) for path in layers)
        advice = f"record both once more with mp.record(..., keep=({keep},)) to have it named"
    random = [side.steps[0].get("random") for side in (a, b)]
    same_backend = a.backend == b.backend
    if same_backend and all(random) and random[0] != random[1]:
        more = "the random generators stood elsewhere when the step began"
        causes = tuple(cause.with_evidence(more) for cause in found.root_causes[:1])
        found = replace(found, root_causes=(*causes, *found.root_causes[1:]))
    return Runs(
        f"step {number}, {found.verdict}",
        same=False,
        step=number,
        found=found,
        steps=tuple(steps),
        drift=tuple(drift),
        advice=advice,
    )


def _worth_keeping(found: Verdict, a: Evidence, b: Evidence) -> list[str]:
    """Return the layers whose whole tensors would tell more; empty if they were kept."""
    first = found.first
    if first is None or first.phase not in ("forward", "loss"):
        return []
    layers = [first.layer, first.own_layer]
    if first.phase == "loss":  # what the loss was taken of
        ends = [
            [c.path for c in side.inspection.calls if c.category not in ("container", "op")][-1:]
            for side in (a, b)
        ]
        layers = [path for end in ends for path in end]
    elif first.layer.startswith("("):
        return []
    calls = [c for side in (a, b) for c in side.inspection.calls if c.path in layers]
    kept = bool(calls) and all(x.values is not None for c in calls for x in c.outputs)
    return [] if kept else list(dict.fromkeys(layers))


def _started_apart(a: Evidence, b: Evidence) -> str:
    """Return in words how the runs did not begin alike; ``""`` if they did."""
    sides = a.weights[0], b.weights[0]
    if len(sides[0]) != len(sides[1]):
        paths = [[w.path for w in side] for side in sides]
        lone = [
            f"; {who} alone has weights in {path}, its own or not tied"
            for who, mine, others in (("the reference", *paths), ("this side", *paths[::-1]))
            for path in mine
            if path not in others
        ]
        counts = f"{len(sides[0])} layers with weights against {len(sides[1])}"
        return f"another model: {counts}{''.join(lone[:1])}"
    for left, right in align_weights(*sides):
        shapes = [{n: x.shape for n, x in side.arrays.items()} for side in (left, right)]
        if shapes[0] != shapes[1]:
            return (
                f"another model: {left.path} has {shapes[0]}, and {right.path} on the other side "
                f"{shapes[1]}"
            )
        away = relative_difference([left], [right])
        if away > _SAME_START:
            spread = [float(np.std(next(iter(side.arrays.values())))) for side in (left, right)]
            return (
                f"other first weights: {left.path} is {away:.1e} apart before the first step, its "
                f"values spread by {spread[0]:.3g} there and {spread[1]:.3g} here"
            )
    return ""


def _together(side: Path, number: int) -> Evidence:
    """Return one step, with the weights and gradients of those right behind it."""
    found = _without_loss(load(side / f"step-{number:06d}"))
    for later in range(number + 1, number + _TOGETHER):
        if not (side / f"step-{later:06d}" / "evidence.safetensors").exists():
            break
        after = load(side / f"step-{later:06d}")
        found = replace(
            found,
            weights=(*found.weights, after.weights[1]),
            grads=(*found.grads, after.grads[0]),
            steps=(*found.steps, *after.steps),
        )
    return found


def _without_loss(found: Evidence) -> Evidence:
    """Return a step whose model hands on no loss: one that it takes itself is no output of it."""
    calls = []
    for call in found.inspection.calls:
        numbers = [n for n, x in enumerate(call.outputs) if x.shape]
        if not call.path and 0 < len(numbers) < len(call.outputs):
            outputs = tuple(call.outputs[n] for n in numbers)
            grads = tuple(call.grad_outputs[n] for n in numbers)
            calls.append(replace(call, outputs=outputs, grad_outputs=grads))
        else:
            calls.append(call)
    return replace(found, inspection=replace(found.inspection, calls=tuple(calls)))


def _drift(a: Evidence, b: Evidence) -> float:
    """Return how far the weights are apart before a step: the worst array, relative."""
    sizes = [0.0]
    for left, right in align_weights(a.weights[0], b.weights[0]):
        for name, array in left.arrays.items():
            if name.startswith("running"):
                continue  # a step in training does not read them
            if name in right.arrays and right.arrays[name].shape == array.shape:
                least = 1e-3 * float(np.sqrt(array.size))
                sizes.append(float(apart(array, right.arrays[name], least)[0].relative))
    return max(sizes)


def _carried(found: Verdict, drift: float) -> bool:
    """Return whether what differs is what earlier steps left in the weights."""
    first = found.first
    if first is None or first.phase == "input" or not drift:
        return False
    return first.relative <= _DRIFT * drift
