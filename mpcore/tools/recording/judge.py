"""Which side is off: the layer that parts, each side's own replayed in float64."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from mpcore.errors import ExperimentError
from mpcore.numerics.dtypes import FORMATS
from mpcore.tools.reproduction import printed, write_replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.reproduction import Side

__all__ = ["Judgement", "judge"]

_ROUNDINGS = 64.0  # spacings of the format: what sums of a layer may be off by
_FLOAT32 = 1e-5  # relative: the least of that


@dataclass(frozen=True)
class Judgement:
    """How far each side is from what its own layer makes of its own input, in float64.

    Attributes:
        words: in a sentence.
        off: by quantity, of the reference and of the other side; nan where it was not kept.
        wrong: ``"reference"``, ``"own"``, ``"both"`` or ``"neither"``.
    """

    words: str
    off: dict[str, tuple[float, float]]
    wrong: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {"words": self.words, "off": {k: list(v) for k, v in self.off.items()}} | {
            "wrong": self.wrong
        }


def judge(sides: Sequence[Side], steps: Sequence[Evidence]) -> Judgement:
    """Replay the layer of both sides, and compare with what was recorded.

    Args:
        sides: of the reference and of the other run, each made to compute in float64.
        steps: what was recorded.

    Raises:
        ExperimentError: a side cannot be replayed; with the reason.
    """
    made = [_replayed(side) for side in sides]
    seen = [_recorded(step, side) for step, side in zip(steps, sides, strict=True)]
    off = {
        name: (
            _apart(made[0].get(name), seen[0].get(name)),
            _apart(made[1].get(name), seen[1].get(name)),
        )
        for name in seen[0]
        if name in seen[1]
    }
    limits = [_limit(step, side) for step, side in zip(steps, sides, strict=True)]
    worst = [max((v[n] for v in off.values() if np.isfinite(v[n])), default=0.0) for n in (0, 1)]
    names = [name for n, name in enumerate(("reference", "own")) if worst[n] > limits[n]]
    wrong = {0: "neither", 1: "".join(names)}.get(len(names), "both")
    return Judgement(_words(wrong, off, sides, worst), off, wrong)


def _words(wrong: str, off: dict[str, Any], sides: Sequence[Side], worst: list[float]) -> str:
    told = [f"{side.name} is {size:.1e} from it" for side, size in zip(sides, worst, strict=True)]
    start = f"{sides[0].path} replayed in float64, each side's own on its own input: "
    start += " and ".join(told)
    if wrong == "neither":
        return f"{start}: each computes what its layer says, so the two layers say otherwise"
    if wrong == "both":
        return f"{start}: both are off"
    side = sides[0] if wrong == "reference" else sides[1]
    number = 0 if wrong == "reference" else 1
    where = max(off, key=lambda name: -1.0 if np.isnan(off[name][number]) else off[name][number])
    return f"{start}: {side.name} is off, most in its {where}"


def _replayed(side: Side) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "replay.py"
        out = write_replay(script, side)
        try:
            printed(script)
        except ExperimentError as exc:
            msg = f"the layer of {side.name}, in float64 in {side.backend}, {exc}"
            raise ExperimentError(msg) from None
        return dict(load_file(out))


def _recorded(step: Evidence, side: Side) -> dict[str, Any]:
    """Return what a side made in the step, by the words of the replay."""
    calls = [c for c in step.inspection.calls if c.path == side.path and c.category != "op"]
    call = calls[0]
    found = {"output": call.outputs[0].values}
    if len(calls) == 1:
        for number, grad in enumerate(call.grad_inputs):
            if grad is not None and grad.values is not None:
                found[f"gradient of input {number}"] = grad.values
    return {name: np.asarray(value) for name, value in found.items() if value is not None}


def _apart(exact: Any, own: Any) -> float:
    if exact is None or own is None or exact.shape != own.shape:
        return float("nan")
    size = float(np.linalg.norm(exact)) or 1.0
    return float(np.linalg.norm(np.float64(own) - np.float64(exact))) / size


def _limit(step: Evidence, side: Side) -> float:
    compute = side.compute if side.compute in FORMATS else step.compute
    return max(_FLOAT32, _ROUNDINGS / 16 * float(FORMATS[compute].spacing))
