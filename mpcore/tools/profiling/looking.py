"""One policy looked at: steps with and without the profiler, kernels alone, what they promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpcore.backend.profiler import CAST
from mpcore.numerics.dtypes import is_low
from mpcore.tools.profiling.rules import Candidate, candidates

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.backend.profiler import KernelTime, Profiler, Recording
    from mpcore.tools.profiling.stepping import Run

__all__ = ["Looked", "look"]

_KERNELS = 16  # the heaviest; those below are a few per mille of a step each
_FEWEST = 5


@dataclass(frozen=True)
class Looked:
    """What was seen of a policy.

    Attributes:
        plain: seconds of steps without the profiler, before and after it; none if not asked for.
        recording: what the profiler saw.
        kernels: the heaviest, timed alone; none where 16 bits are simulated or not asked for.
        worth: policies that these promise something of, the best first.
        skipped: steps of the recording that the loss scale skipped.
    """

    plain: list[float]
    recording: Recording
    kernels: list[KernelTime]
    worth: list[Candidate]
    skipped: int


def look(
    run: Run, profiler: Profiler, emit: Callable[..., None], *, plain_too: bool = True
) -> Looked:
    """Take steps of a run without the profiler and under it, then time its kernels alone.

    Args:
        run: what is looked at.
        profiler: of its framework.
        emit: called with what goes on.
        plain_too: whether steps without the profiler are taken.
    """
    emit(phase="steps", step=0, of=1)
    count = max(len(run.batches), _FEWEST) if plain_too else 0
    plain = [run.seconds() for _ in range(count)]
    emit(phase="profile", step=0, of=1)
    before = int(run.amp.state.skipped_steps)
    recording = profiler.record(run.amp, run.loss_fn, run.batches)
    skipped = int(run.amp.state.skipped_steps) - before
    plain += [run.seconds() for _ in range(count)]  # before and after: the machine drifts
    plan, can = run.amp.plan, run.backend.capabilities(run.model)
    low = plan.policy.compute
    kernels: list[KernelTime] = []
    if is_low(low) and not run.amp.simulated:
        emit(phase="kernels", step=0, of=1)
        heaviest = _heaviest(recording)
        kernels = profiler.kernels(run.amp, run.loss_fn, run.batches[0], heaviest, low)
    worth = candidates(plan, run.layers, recording.ops, recording.steps, kernels, device=can.device)
    return Looked(plain, recording, kernels, [] if run.amp.simulated else worth, skipped)


def _heaviest(recording: Recording) -> list[str]:
    """Return the kernels that most time goes to, casts left out."""
    found: dict[str, float] = {}
    for op in recording.ops:
        for name, (_, seconds) in op.kernels.items() if op.op != CAST else ():
            found[name] = found.get(name, 0.0) + seconds
    return sorted(found, key=lambda name: -found[name])[:_KERNELS]
