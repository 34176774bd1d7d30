"""Steps under two policies beside each other, and names for groups of layers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpcore.tools.profiling.duel import FASTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mpcore.backend.profiler import Spread

__all__ = ["Versus", "pattern_by_path"]


@dataclass(frozen=True)
class Versus:
    """Whole steps under another policy, alternating with steps under the profiled one.

    Attributes:
        policy: the other policy, as text.
        rule: what it adds to the profiled one; ``""`` where it is another one altogether.
        why: what made it worth trying.
        now: seconds a step under the profiled policy.
        then: seconds a step under the other one.
        saves: seconds a step that the other one saves, of neighbouring steps; negative if slower.
        rounds: number of pairs.
        decision: what the sign test says of the other one: ``FASTER``, ``SLOWER`` or ``""``.
    """

    policy: str
    rule: str
    why: str
    now: Spread
    then: Spread
    saves: Spread
    rounds: int
    decision: str = ""

    @property
    def sure(self) -> bool:
        """Whether the sign test was decided."""
        return bool(self.decision)

    @property
    def helps(self) -> bool:
        """Whether the other policy is surely faster."""
        return self.decision == FASTER


def pattern_by_path(paths: Iterable[str]) -> dict[str, str]:
    """Return for each path the path with numbers as ``*``, where that unites several.

    The last part of a path keeps its numbers: ``fc1`` and ``fc2`` are two things.

    Examples:
        >>> pattern_by_path(["a.0.up", "a.1.up", "b0.head", "1", "2"])
        {'a.0.up': 'a.*.up', 'a.1.up': 'a.*.up', 'b0.head': 'b0.head', '1': '1', '2': '2'}
    """
    alike: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        home, dot, last = path.rpartition(".")
        alike.setdefault(re.sub(r"\d+", "*", home) + dot + last, []).append(path)
    return {
        path: pattern if len(own) > 1 else path for pattern, own in alike.items() for path in own
    }
