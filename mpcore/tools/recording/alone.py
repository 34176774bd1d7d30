"""The layer in which two recorded runs part, run alone: judged in float64, or as a script."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import ExperimentError
from mpcore.tools.divergence.files import load
from mpcore.tools.recording.judge import Judgement, judge
from mpcore.tools.recording.layers import recorded_side
from mpcore.tools.reproduction import run_script, write_script

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore.checkpoint.layer_weights import LayerWeights
    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.divergence.first import First
    from mpcore.tools.reproduction import Side

__all__ = ["judged", "reproduced"]

_PHASES = ("forward", "backward")


def judged(runs: tuple[Path, Path], steps: tuple[Evidence, Evidence], first: First) -> Judgement:
    """Say which run is off in the layer where they part.

    Args:
        runs: folders of one rank each.
        steps: the step in which they part, of both.
        first: where they part.

    Raises:
        ExperimentError: that layer cannot be run alone; with the reason.
    """
    return judge([side for _, side in _sides(runs, steps, first)], steps)


def reproduced(
    runs: tuple[Path, Path], steps: tuple[Evidence, Evidence], first: First, path: Path
) -> str:
    """Write the layer where two runs part as a script, run it, and return what to say."""
    try:
        sides = [side for side, _ in _sides(runs, steps, first)]
    except ExperimentError as exc:
        return f"not written: {exc}"
    what = f"{sides[0].name} and {sides[1].name} part first in {first.layer}, {first.phase}"
    write_script(path, sides, what, path)
    _, printed = run_script(path)
    return f"{path}, run here:\n{printed}"


def _sides(
    runs: tuple[Path, Path], steps: tuple[Evidence, Evidence], first: First
) -> list[tuple[Side, Side]]:
    """Return both sides, as they ran and made to compute in float64."""
    if first.phase not in _PHASES or not first.layer or first.layer.startswith("("):
        msg = f"they part in {first.layer or 'the model'} ({first.phase}), no layer that runs alone"
        raise ExperimentError(msg)
    found = []
    for run, step, path in zip(runs, steps, (first.layer, first.own_layer), strict=True):
        told = _told(run)
        weights = _weights(run, step, path or first.layer)
        name = run.parent.name
        side = recorded_side(name, step, weights, told, path or first.layer)
        found.append((side, replace(side, constructor=told[path or first.layer]["double"])))
    if found[0][0].name == found[1][0].name:
        found = [tuple(replace(s, name=str(r)) for s in pair) for pair, r in zip(found, runs)]  # type: ignore[misc]  # noqa: B905
    return found


def _told(run: Path) -> dict[str, Any]:
    file = run / "start" / "layers.json"
    if not file.is_file():
        msg = f"{run.parent} was recorded without what makes its layers: record it again"
        raise ExperimentError(msg)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _weights(run: Path, step: Evidence, path: str) -> list[LayerWeights]:
    """Return the whole weights before a step: those of the start, or of a layer that was kept."""
    start = load(run / "start").weights[0]
    if step.steps[0]["number"] == 0:
        return start
    shapes = {(w.path, n): a.shape for w in start for n, a in w.arrays.items()}
    for layer in step.weights[0]:
        inside = layer.path == path or layer.path.startswith((f"{path}.", f"{path}:"))
        if inside and any(a.shape != shapes[layer.path, n] for n, a in layer.arrays.items()):
            msg = (
                f"the weights of {path!r} were not kept whole at step {step.steps[0]['number']}: "
                f"record both runs again with mp.record(..., keep=({path!r},))"
            )
            raise ExperimentError(msg)
    return step.weights[0]
