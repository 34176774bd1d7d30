"""A small environment in the place of gym's, where that is not installed: the same on both sides.

It has four observed numbers and two actions, and every episode ends after twelve steps. What is
observed and rewarded hangs on the actions, so that a policy that differs sees other numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Environment", "makes_one"]

_MAKERS = re.compile(r"(gym|gymnasium)\.make")
_SIZE, _ACTIONS, _STEPS = 4, 2, 12


def makes_one(name: str) -> bool:
    """Return whether a function of that full name makes an environment."""
    return _MAKERS.fullmatch(name) is not None


class _Space:
    def __init__(self, shape: tuple[int, ...], n: int, random: np.random.RandomState) -> None:
        self.shape, self.n, self._random = shape, n, random
        self.dtype = np.dtype("float32" if shape else "int64")

    def sample(self) -> Any:
        """Return a random element."""
        if self.shape:
            return self._random.standard_normal(self.shape).astype("float32")
        return int(self._random.randint(self.n))

    def seed(self, *_: Any) -> None:
        """Do nothing: there is one seed."""


class Environment:
    """One environment.

    Args:
        wanted: says into how many names its caller takes apart what it gets; 0 for none. Older
            versions of gym give less.
    """

    def __init__(self, wanted: Callable[[], int]) -> None:
        self._random = np.random.RandomState(0)
        self._wanted = wanted
        self.observation_space = _Space((_SIZE,), 0, self._random)
        self.action_space = _Space((), _ACTIONS, self._random)
        self._state = np.zeros(_SIZE)
        self._left = _STEPS

    @property
    def unwrapped(self) -> Environment:
        """Itself."""
        return self

    def reset(self, **_: Any) -> Any:
        """Begin an episode; return what is observed, with a dict if two are taken."""
        self._state = self._random.uniform(-0.05, 0.05, _SIZE)
        self._left = _STEPS
        return (self._seen(), {}) if self._wanted() == 2 else self._seen()

    def step(self, action: Any) -> tuple[Any, ...]:
        """Do an action; return what is observed, the reward, and whether it ends."""
        push = float(np.asarray(action).reshape(-1)[0]) - 0.5
        self._state = 0.9 * self._state + 0.2 * push + self._random.uniform(-0.1, 0.1, _SIZE)
        self._left -= 1
        ends = self._left <= 0
        reward = float(1.0 - abs(self._state[0]))
        if self._wanted() == 4:
            return self._seen(), reward, ends, {}
        return self._seen(), reward, ends, False, {}

    def seed(self, *_: Any) -> None:
        """Do nothing: there is one seed."""

    def render(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    close = render

    def _seen(self) -> Any:
        return self._state.astype("float32")
