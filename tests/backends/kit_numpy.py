"""The reference in the suites of this repository: its package's kit, and what they ask besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore_numpy import emulated_ascend
from mpcore_numpy.kit import NumpyKit, loss_and_gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mpcore_numpy.model import Model

    Arrays = dict[str, npt.NDArray[Any]]


class FullNumpyKit(NumpyKit):
    """Implements ``harness.FullKit``."""

    saturating_steps = 10_000

    def losses(self, model: Model) -> dict[str, Callable[..., Any]]:
        """Return two losses, one without ``boost``."""

        def steady(
            params: Arrays, buffers: Arrays, cast: Any, scale: Any, x: Any, y: Any, boost: Any
        ) -> Any:
            return loss_and_gradients(params, buffers, cast, scale, x, y, np.float32(1))

        return {"a": steady, "b": loss_and_gradients}

    def counter(self) -> tuple[Callable[[], None], Callable[[], int]]:
        """Return what counts, and what reads the count."""
        count = np.zeros(())

        def add() -> None:
            count[...] += 1

        return add, lambda: int(count)

    def memory(
        self, model: Model
    ) -> tuple[Any, Callable[..., Any], Callable[[], npt.NDArray[Any]]]:
        """Return an array, a loss that changes it, and what reads it."""
        memory = np.zeros(16, "f4")

        def loss_fn(*args: Any) -> Any:
            memory[...] += 1
            return loss_and_gradients(*args)

        return memory, loss_fn, memory.copy

    def emulated_ascend(self) -> Any:
        """Return the emulated device."""
        return emulated_ascend()


kit = FullNumpyKit()
