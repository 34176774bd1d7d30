"""The report in the terminal: the runs and the pairs as tables of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mpcore.tools.report.depth_table import depth_parts
from mpcore.tools.report.judged import judged_words, power_words
from mpcore.tools.report.numbers import NONE
from mpcore.tools.report.view import pair_views, run_views
from mpcore.tools.report.words import INTERRUPTED, rough

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mpcore.tools.report.result import Result
    from mpcore.tools.report.view import PairView, RunView

__all__ = ["table"]

_SHOWN = 9  # pairs whose numbers are told; report.json has all


def table(result: Result) -> Group:
    """Return the runs and the pairs as tables for a terminal of at least 80 columns."""
    runs, pairs = run_views(result), pair_views(result)
    parts: list[Any] = [_run_table(runs), *_run_notes(runs)]
    if pairs:
        parts += [Text(), _pair_table(pairs), *_pair_notes(pairs), *_judged(result)]
    parts += depth_parts(result, _empty_table)
    if result.interrupted:
        parts.append(Text(INTERRUPTED, "yellow"))
    return Group(*parts)


def _run_table(runs: Sequence[RunView]) -> Table:
    shown = _empty_table(
        ("backend", "policy", "device"),
        (
            "final\nloss",
            "skip",
            "final\nscale",
            "test\nacc.",
            "ms/step\n(p90)",
            "peak\nMB",
            "speed",
        ),
    )
    width = max((len(run.p90) for run in runs), default=0)
    for run in runs:
        policy = Text(run.policy)
        if run.simulated:
            policy.append("\nsimulated", "yellow")
        ended = run.status == "ok"
        time = f"{run.median} ({run.p90:>{width}})" if run.median != NONE else NONE
        shown.add_row(
            Text(run.backend),
            policy,
            Text(run.device),
            Text(run.loss if ended else run.status, "red" if _is_bad(run) else ""),
            *(Text(cell) for cell in (run.skipped, run.scale, run.accuracy, time)),
            *(Text(cell) for cell in (run.memory, run.speed)),
        )
    return shown


def _is_bad(run: RunView) -> bool:
    return run.status != "ok" or run.loss in ("nan", "inf", "-inf")


def _run_notes(runs: Sequence[RunView]) -> list[Text]:
    notes = [
        Text(f"{run.backend}, {run.policy}, {run.status}: {run.error}", "red")
        for run in runs
        if run.status != "ok"
    ]
    key = "speed: times as fast as the same backend in float32"
    if any(run.simulated for run in runs):
        key += "; simulated: rounded, not run, in the low dtype"
    slow = rough(runs)
    return [*notes, Text(key, "dim"), *([Text(f"speed: {slow}", "yellow")] if slow else [])]


def _pair_table(pairs: Sequence[PairView]) -> Table:
    shown = _empty_table(
        ("pair", "policy"),
        ("loss\nlock", "grad\nlock", "update\nlock", "loss\nfree", "noise"),
    )
    shown.add_column("verdict", overflow="fold")
    for pair in pairs:
        cells = (*pair.lockstep, pair.free, pair.tolerance)
        shown.add_row(
            Text(f"{pair.a} - {pair.b}"),
            Text(pair.policy),
            *(Text(cell) for cell in cells),
            Text(pair.verdict, pair.look[0]),
        )
    return shown


def _pair_notes(pairs: Sequence[PairView]) -> list[Text]:
    notes = [
        Text(f"{pair.a} - {pair.b}, {pair.policy}, {pair.verdict}: {pair.reason}", pair.look[0])
        for pair in pairs
        if pair.reason
    ]
    key = (
        "lock: every step from the same weights; free: each run on its own;\n"
        "noise: what one rounding error in the first weights does. All relative."
    )
    return [*notes, Text(key, "dim")]


def _judged(result: Result) -> list[Text]:
    """Return a line a pair on what was judged, and what would have shown."""
    lines = []
    for pair, view in zip(result.pairs[:_SHOWN], pair_views(result), strict=False):
        name, words = f"{view.a} - {view.b}, {view.policy}", judged_words(pair)
        if words:
            shown = power_words(pair)
            lines.append(Text(f"judged: {name}: {words}", "dim"))
            lines.append(Text(f"  would have shown: {shown}" if shown else "", "dim"))
    return [line for line in lines if line.plain]


def _empty_table(left: Iterable[str], right: Iterable[str]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in left:
        shown.add_column(name, overflow="fold", vertical="top")
    for name in right:
        shown.add_column(name, justify="right", no_wrap=True)
    return shown
