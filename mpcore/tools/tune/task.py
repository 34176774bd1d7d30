"""What a search is told."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BUDGET", "FAST", "LOW", "Task"]

BUDGET, FAST = 300.0, 60.0
"""Seconds of a search, and of one without the proof."""

LOW = ("bfloat16", "float16")
"""Dtypes that a search may use."""

_FREE = frozenset({"budget", "fast", "tries", "formats", "tolerance", "forbidden"})
"""Fields that may differ between calls: what was measured stays true."""


@dataclass(frozen=True)
class Task:
    """One search, in one framework.

    Attributes:
        backend: name of the builder.
        formats: 16-bit dtypes that may be used.
        budget: seconds of the wall clock.
        steps: of each training run of the proof; None for the experiment's.
        batch: examples a step; None for the experiment's.
        tries: policies beyond the named ones that are tried on whole steps, at most.
        fast: whether it ends before the proof.
        tolerance: largest relative difference of the held-out loss from float32's; None for two
            standard deviations of float32 runs in other orders of the data.
        check: a policy that is measured anew, instead of a search; ``""`` for a search.
        forbidden: 16-bit dtypes that the hardware forbids, each with the reason.
    """

    backend: str
    formats: tuple[str, ...] = ("bfloat16",)
    budget: float = BUDGET
    steps: int | None = None
    batch: int | None = None
    tries: int = 8
    fast: bool = False
    tolerance: float | None = None
    check: str = ""
    forbidden: tuple[tuple[str, str], ...] = ()

    def key(self, about: Mapping[str, Any]) -> str:
        """Return what tells this search's entries from others in one log.

        Args:
            about: model, shapes, versions, device: what a measurement hangs on beside the task.
        """
        own = {name: value for name, value in asdict(self).items() if name not in _FREE}
        text = json.dumps([own, dict(about)], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
