"""What each test computes, with the processes that it starts; shards are cut by the sums.

CPU seconds, since those hardly change with what else the machine does. A forked process of
``tests/processes/warm.py`` counts for the test that waits for it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

TICK = os.sysconf("SC_CLK_TCK")
WAITED = 0.05  # seconds of a test without computing, from which on it may have waited for a process


class Stopwatch:
    """Writes ``{"group": ..., "all": ..., "tests": {nodeid: CPU seconds}}`` at the end.

    ``all`` is false where a share of the cases was run: what they share, few of them pay.
    """

    def __init__(self, group: str, output: Path, *, whole: bool) -> None:
        self.group, self.output, self.whole = group, output, whole
        self.seconds: Counter[str] = Counter()
        self._started = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        wall, own = time.monotonic(), time.process_time()
        done = yield
        own = time.process_time() - own
        others = 0.0
        if time.monotonic() - wall - own > WAITED:
            total = started()
            others, self._started = total - self._started, total
        self.seconds[item.nodeid] += own + others
        return done

    def pytest_sessionfinish(self) -> None:
        tests = {nodeid: round(seconds, 3) for nodeid, seconds in self.seconds.items()}
        text = json.dumps({"group": self.group, "all": self.whole, "tests": tests}, indent=1)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output.write_text(text + "\n", encoding="utf-8")


def started() -> float:
    """Return the CPU seconds of all processes below this one, those that have ended too."""
    parents, spent = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended in between
            continue
        fields = text.rpartition(")")[2].split()
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(int(field) for field in fields[11:15])
    ended = os.times()
    below = defaultdict(list)
    for pid, parent in parents.items():
        below[parent].append(pid)
    total, left = 0, list(below[os.getpid()])
    while left:
        pid = left.pop()
        total += spent[pid]
        left += below[pid]
    return total / TICK + ended.children_user + ended.children_system
