"""How much of the machine others use: speeds taken beside them mislead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["BUSY", "CROWDED", "Moment", "moment", "used_by_others"]

_STAT = Path("/proc/stat")

BUSY = 0.25
"""From this share of the machine on that others use, speeds are called rough, and a framework that
starts then gets one thread: threads that wait for each other wait for the neighbours too. Measured
with six busy processes on two cores: torch 2.13.0 with two threads took 10 to 1000 times as long,
in every dtype alike, so that ratios were near 1."""

CROWDED = 0.4
"""From this share on no ratio of two speeds is told. Measured with two busy processes on two cores,
which used half of them: one policy's steps took 60 times as long, the next one's did not."""


class Moment(NamedTuple):
    """Processor time so far, in seconds over all cores: of everybody, idle, and of this process."""

    total: float
    idle: float
    own: float


def moment(text: str | None = None) -> Moment:
    """Return the processor time so far.

    Args:
        text: of Linux's /proc/stat; read if None. Where there is none, all times but this
            process's own are 0.
    """
    if text is None:
        text = _STAT.read_text(encoding="utf-8") if _STAT.exists() else ""
    times = os.times()
    own = times.user + times.system
    if not text:
        return Moment(0.0, 0.0, own)
    ticks = [int(number) for number in text.split("\n", 1)[0].split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    return Moment(sum(ticks) / second, (ticks[3] + ticks[4]) / second, own)  # idle, and disks


def used_by_others(before: Moment, after: Moment) -> float:
    """Return the share of the machine, in [0, 1], that others used; 0 where nothing tells."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    others = total - (after.idle - before.idle) - (after.own - before.own)
    return min(max(others / total, 0.0), 1.0)
