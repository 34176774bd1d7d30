"""Questions that ask each other, in circles too: their least answers.

A function gives what another gives, and that one what the first gives. Each question starts from
the least answer and is asked again until nothing changes (Kleene's fixpoint): no answer depends
on where the circle was entered, and the cost is questions times rounds, not ways through them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["LeastFixpoint"]

Answer = TypeVar("Answer")


@dataclass
class LeastFixpoint:
    """Answers to questions, which may ask others while they are answered.

    An answer may only grow when another one does (false to true, a set to a larger one), and may
    not be changed by who gets it.
    """

    _known: dict[Hashable, Any] = field(default_factory=dict)
    _settled: set[Hashable] = field(default_factory=set)
    _round: set[Hashable] | None = None
    _changed: bool = False

    def ask(self, key: Hashable, answer: Callable[[], Answer], *, least: Answer) -> Answer:
        """Return the answer to the question ``key``, ``least`` where nothing makes it more."""
        if key in self._settled or (self._round is not None and key in self._round):
            return cast("Answer", self._known.get(key, least))
        if self._round is None:
            self._settle(key, answer, least)
            return cast("Answer", self._known[key])
        self._round.add(key)
        found = answer()
        if found != self._known.get(key, least):
            self._changed = True
        self._known[key] = found
        return found

    def _settle(self, key: Hashable, answer: Callable[[], Any], least: Any) -> None:
        self._changed = True
        try:
            while self._changed:
                self._round, self._changed = set(), False
                self.ask(key, answer, least=least)
            self._settled |= self._round or set()
        finally:
            self._round = None
