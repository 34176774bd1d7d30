"""The guard of a prepared model: closed, but for regions that say so."""

from __future__ import annotations

import pytest

from mpcore.amp.guard import Guard
from mpcore.errors import GuardError


def _touch(guard: Guard) -> None:
    guard.check("`optimizer.step()`", "call `amp.step(loss_fn, ...)`")


def test_closed_names_the_calls() -> None:
    with pytest.raises(GuardError, match=r"optimizer\.step.*amp\.step.*unguarded.*release"):
        _touch(Guard())


def test_regions_nest_and_close_after_an_error() -> None:
    guard = Guard()

    def fail_inside() -> None:
        with guard.opened():
            with guard.opened():
                _touch(guard)
            _touch(guard)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    with pytest.raises(GuardError):
        _touch(guard)
