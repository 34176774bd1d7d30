"""What a comparison of two recorded runs says in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.tools.experiment.progress import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from mpcore.tools.recording.compare_runs import Runs

__all__ = ["tell_runs"]


def tell_runs(console: Console, runs: Mapping[int, Runs]) -> None:
    """Print what was found, rank by rank."""
    for rank, found in runs.items():
        who = f"rank {rank}: " if len(runs) > 1 else ""
        say(console, f"{who}{found.verdict}")
        if found.step is not None and found.found is not None:
            before = sum(number < found.step for number in found.steps)
            say(console, f"  {before} steps before it agree; {found.found.how}")
            for cause in found.found.root_causes[:2]:
                say(
                    console,
                    f"  {cause.kind} ({cause.confidence}), {cause.own_layer or 'the model'}",
                )
                for sentence in cause.evidence[:3]:
                    say(console, f"    {sentence}")
                say(console, f"    fix: {cause.fix}")
        if found.judgement is not None:
            say(console, f"  {found.judgement.words}")
        if found.alone:
            say(console, f"  alone: {found.alone}")
        if found.advice:
            say(console, f"  next: {found.advice}")
