"""What the suites for every backend share: the conformance suite's harness, and our kits."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
import pytest

from mpcore.backend.kit import Kit
from mpcore.conformance.harness import (
    POLICIES,
    Trained,
    X,
    Y,
    assert_same,
    oracle_weights,
)

__all__ = ["POLICIES", "Trained", "X", "Y", "assert_same", "covering", "load_kit", "oracle_weights"]

HERE = Path(__file__).parent


class FullKit(Kit, Protocol):
    """What the tests of the whole transaction need besides.

    Attributes:
        saturating_steps: overflows on the emulated device that a test draws, of which none may be
            missed.
    """

    saturating_steps: int

    def losses(self, model: Any) -> dict[str, Callable[..., Any]]:
        """Return {"a": f, "b": g}, both like ``loss_fn``, but f does without ``boost``."""
        ...

    def counter(self) -> tuple[Callable[[], Any], Callable[[], int]]:
        """Return (what adds one to a variable of the framework, what reads it)."""
        ...

    def memory(self, model: Any) -> tuple[Any, Callable[..., Any], Callable[[], npt.NDArray[Any]]]:
        """Return what ``restore_on_skip`` is tested with.

        Returns:
            (a variable of the framework, shape (16,), float32, no part of the model; a loss
            function like ``loss_fn`` that adds 1 to it in its forward pass; what reads it).
        """
        ...

    def emulated_ascend(self) -> Any:
        """Return the backend's context manager that emulates a saturating device."""
        ...


def load_kit(name: str):
    """Return our kit of a framework."""
    spec = importlib.util.spec_from_file_location(f"kit_{name}", HERE / f"kit_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kit


def covering(*factors, times=1, keep=()):
    """Return the product of factors for ``parametrize``; all but a cover of it runs by night.

    The cover goes round all factors at once, as often as the longest has values, so that each
    value of each factor is in it; ``times`` rounds follow each other, the first factor one place
    behind in each. It is for products that repeat: a factor's own faults do not need its partner;
    pairs that are special for a reason are in ``keep``.
    """
    longest = max(map(len, factors))
    cover = {
        ((index + turn) % len(factors[0]), *(index % len(factor) for factor in factors[1:]))
        for turn in range(times)
        for index in range(longest)
    }
    rows = {
        places: tuple(factor[place] for factor, place in zip(factors, places, strict=True))
        for places in itertools.product(*(range(len(factor)) for factor in factors))
    }
    by_day = [places for places, row in rows.items() if places in cover or row in keep]
    return [
        pytest.param(*row, marks=() if places in by_day else pytest.mark.nightly)
        for places, row in rows.items()
    ]
