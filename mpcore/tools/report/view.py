"""A result as the reader sees it: every run and every pair as text, ready for a cell."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, TypeVar

from mpcore.capabilities.load import BUSY, CROWDED
from mpcore.tools.report.judged import decisive_words, judged_rows, nearness, power_words
from mpcore.tools.report.numbers import (
    NONE,
    format_difference,
    format_loss,
    format_megabytes,
    format_milliseconds,
    format_percent,
    format_scale,
    number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mpcore.tools.report.judged import JudgedRow
    from mpcore.tools.report.result import Pair, Result, Run

__all__ = ["PairView", "RunView", "grouped", "look_of", "matrices", "pair_views", "run_views"]

# verdict: how the terminal shows it, and the class and sign of its badge in the page
_LOOKS = {
    "same": ("bold green", "good", "\N{CHECK MARK}"),
    "different": ("bold red", "bad", "\N{MULTIPLICATION X}"),
    "known difference": ("bold yellow", "known", "!"),
    "too noisy": ("yellow", "noisy", "~"),
    "not compared": ("dim", "none", "\N{EN DASH}"),
}
_MANY = 12  # pairs of one policy that a reader takes in as a table
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class RunView:
    """One run.

    ``others`` is the share of the machine that others used while its speed was measured; 0 where it
    has none to tell.
    """

    backend: str
    policy: str
    device: str
    simulated: bool
    status: str
    error: str
    loss: str
    skipped: str
    scale: str
    safe_scale: str
    accuracy: str
    median: str
    p90: str
    memory: str
    speed: str
    others: float


@dataclass(frozen=True)
class PairView:
    """One comparison of two runs.

    ``policy`` names both where they are two. ``left`` and ``right`` name the two
    configurations, with their policies then. ``decided`` tells the number that decided, and
    ``nearness`` how many times its tolerance that is.
    """

    a: str
    b: str
    left: str
    right: str
    policy: str
    lockstep: tuple[str, ...]
    lockstep_loss: float
    free: str
    tolerance: str
    verdict: str
    reason: str
    decided: str
    nearness: float
    judged: tuple[JudgedRow, ...]
    power: str

    @property
    def look(self) -> tuple[str, str, str]:
        """Style in the terminal, class in the page, sign."""
        return look_of(self.verdict)


def look_of(verdict: str) -> tuple[str, str, str]:
    """Return how a verdict looks: style in the terminal, class in the page, sign."""
    found = (look for word, look in _LOOKS.items() if verdict.startswith(word))
    return next(found, _LOOKS["not compared"])


def run_views(result: Result) -> list[RunView]:
    """Return every run of a result, in its order."""
    baselines = {run.backend: run for run in result.runs if run.policy == "float32"}
    return [_run_view(run, baselines.get(run.backend)) for run in result.runs]


def _run_view(run: Run, baseline: Run | None) -> RunView:
    worked = [scale for scale, moved in zip(run.scale, run.stepped, strict=False) if moved]
    memory, accuracy = number(run.peak_memory_bytes), number(run.test_accuracy)
    median, p90 = _median(run), number(run.step_seconds.p90 if run.step_seconds else None)
    # emulated arithmetic is slower than the real one would be: no speed to tell
    told = None if run.simulated else baseline
    speed = _median(told) / median if told is not None else float("nan")
    others = max(_others(run), _others(baseline)) if isfinite(speed) else 0.0
    return RunView(
        backend=run.backend,
        policy=run.policy,
        device=run.device or NONE,
        simulated=run.simulated,
        status=run.status,
        error=run.error or "no reason recorded",
        loss=format_loss(run.loss[-1]) if run.loss else NONE,
        skipped=str(run.stepped.count(False)) if run.stepped else NONE,
        scale=format_scale(run.scale[-1]) if run.scale else NONE,
        safe_scale=format_scale(max(worked)) if worked else "none",
        accuracy=f"{accuracy:.3f}" if isfinite(accuracy) else NONE,
        median=format_milliseconds(median) if isfinite(median) else NONE,
        p90=format_milliseconds(p90) if isfinite(p90) else NONE,
        memory=format_megabytes(memory) if isfinite(memory) else NONE,
        speed=_speed_text(speed, others),
        others=others,
    )


def _speed_text(speed: float, others: float) -> str:
    if not isfinite(speed) or others >= CROWDED:
        return NONE
    return f"{'~' * (others >= BUSY)}{speed:.2f}x"


def _median(run: Run) -> float:
    median = number(run.step_seconds.median if run.step_seconds else None)
    return median if median > 0 else float("nan")


def _others(run: Run | None) -> float:
    return run.step_seconds.others if run is not None and run.step_seconds else 0.0


def pair_views(result: Result) -> list[PairView]:
    """Return every comparison of a result, in its order."""
    return [_pair_view(pair) for pair in result.pairs]


def _pair_view(pair: Pair) -> PairView:
    steps, free = pair.lockstep, pair.free
    sizes = [float("nan")] * 3
    if steps is not None:
        sizes = [steps.max_rel_loss_diff, steps.max_rel_grad_diff, steps.max_rel_update_diff]
    verdict, _, reason = pair.verdict.partition(": ")
    (_, own), (_, other) = pair.keys
    return PairView(
        a=pair.a,
        b=pair.b,
        left=f"{pair.a} {own}" if pair.across else pair.a,
        right=f"{pair.b} {other}" if pair.across else pair.b,
        policy=f"{own} - {other}" if pair.across else own,
        lockstep=tuple(format_difference(size) if steps else NONE for size in sizes),
        lockstep_loss=sizes[0],
        free=format_percent(free.max_rel_loss_diff if free else None),
        tolerance=format_percent(free.tolerance if free else None),
        verdict=verdict,
        reason=reason,
        decided=decisive_words(pair),
        nearness=nearness(pair),
        judged=tuple(judged_rows(pair)),
        power=power_words(pair),
    )


def matrices(pairs: Sequence[PairView]) -> dict[str, list[tuple[str, list[PairView | None]]]]:
    """Return, per policy with more pairs than one reads, each configuration and its pairs with all.

    Examples:
        >>> matrices([])
        {}
    """
    groups = grouped(pairs, lambda pair: pair.policy)
    return {policy: _matrix(group) for policy, group in groups.items() if len(group) > _MANY}


def _matrix(pairs: Sequence[PairView]) -> list[tuple[str, list[PairView | None]]]:
    known = {frozenset((pair.left, pair.right)): pair for pair in pairs}
    names = dict.fromkeys(name for pair in pairs for name in (pair.left, pair.right))
    return [(row, [known.get(frozenset((row, column))) for column in names]) for row in names]


def grouped(items: Iterable[_Item], key: Callable[[_Item], str]) -> dict[str, list[_Item]]:
    """Return the items by what ``key`` says of them, in the order of its first appearance."""
    groups: dict[str, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
