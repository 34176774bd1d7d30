"""Whether policies are accurate enough in one step; and what must stay full where they are not."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from mpcore.errors import MpcoreError
from mpcore.numerics.dtypes import FORMATS
from mpcore.policy.policy import Policy
from mpcore.tools.tune.candidates import following, kept_full, lowering_only, units
from mpcore.tools.tune.culprits import MOST, find_culprits
from mpcore.tools.tune.screen import Screen

if TYPE_CHECKING:
    from mpcore.tools.tune.bench import Bench
    from mpcore.tools.tune.log import Entry

__all__ = ["FAILURES", "Accuracy", "line_of"]

FAILURES = (MpcoreError, RuntimeError, TypeError, ValueError)
"""A policy's: ours, and a framework's own, where dtypes meet that it does not add."""


class Accuracy:
    """Screens of one search.

    Attributes:
        kept: by 16-bit dtype, the layers that were found to need float32.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.kept: dict[str, list[str]] = {}

    @cached_property
    def _screen(self) -> Screen:
        bench = self._bench
        bench.emit(phase="float64", step=0, of=1)
        return Screen(
            bench.experiment, bench.task.backend, bench.data, bench.task.batch, bench.weights
        )

    def judge(self, policy: str) -> Entry:
        """Return what one step of a policy says."""
        self._bench.check_time()
        self._bench.emit(phase="screen", step=0, of=1, about=policy)

        def judge() -> dict[str, Any]:
            return self._screen.judge(policy) | {"reference": self._screen.reference}

        return self._bench.log.once("screen", {"policy": policy}, judge)

    def screened(self, policy: str) -> str:
        """Return a policy that passes, with culprits kept full; ``""`` if none does."""
        dtype = Policy.parse(policy).compute
        policy = kept_full(policy, self.kept.get(dtype, ()))
        try:
            if self.judge(policy)["passed"]:
                return policy
            if dtype in self.kept:
                return ""
            self.kept[dtype] = self._culprits(dtype)
            better = kept_full(policy, self.kept[dtype])
            return better if self.kept[dtype] and self.judge(better)["passed"] else ""
        except FAILURES as exc:
            self._bench.log.tell("refused", policy=policy, why=line_of(exc))
            return ""

    def _culprits(self, dtype: str) -> list[str]:
        every, base = units(self._bench.layers), f"mixed_{dtype}"
        follows = following(base, self._bench.layers, self._bench.can.device)

        def search() -> dict[str, Any]:
            tested = 0

            def error(low: frozenset[str]) -> float:
                nonlocal tested
                tested += 1
                self._bench.check_time()
                self._bench.emit(phase="culprits", step=tested, of=MOST)
                return self._screen.error(lowering_only(base, low, every, follows))

            found = find_culprits(every, error, rounding=FORMATS[dtype].spacing / 2)
            return {
                "units": list(found.units),
                "evaluations": found.evaluations,
                "whole": found.whole,
                "of": len(every),
            }

        return list(self._bench.log.once("culprits", {"dtype": dtype}, search)["units"])


def line_of(exc: Exception) -> str:
    """Return an error in one line."""
    return " ".join(str(exc).split())[:200]
