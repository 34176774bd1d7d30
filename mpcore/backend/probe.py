"""What a framework runs natively: single operations on given numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

__all__ = ["Case", "Prepared", "Probe"]


@dataclass(frozen=True)
class Case:
    """One operation with numbers.

    Attributes:
        inputs: arrays by name, rounded to the dtype already; a gradient is wanted for each,
            under the name ``d_<input>``.
        data: arrays that get no gradient: ``g``, the gradient of the output, or ``t``, the
            target of the training step.
    """

    inputs: Mapping[str, Array]
    data: Mapping[str, Array]


@dataclass(frozen=True)
class Prepared:
    """An operation, ready to run.

    Attributes:
        run: runs it once, waits for the device and returns tensors by name: ``y``, or with
            gradients ``d_<input>``.
        axes: how to transpose what the framework lays out otherwise, as ``numpy.transpose``.
    """

    run: Callable[[], Mapping[str, Any]]
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Probe(Protocol):
    """What a framework does with single operations.

    An operation that the framework refuses raises, in ``prepare`` or in ``run``.

    Attributes:
        families: names of ``mpcore.capabilities.cases.FAMILIES`` that the framework has at all.
    """

    families: tuple[str, ...]

    def about(self) -> dict[str, Any]:
        """Return what runs here.

        Returns:
            ``versions`` (name to text), ``device``, ``devices`` (texts), ``threads`` (int or
            None), ``settings`` (name to text).
        """
        ...

    def prepare(self, family: str, dtype: str, case: Case, *, grad: bool) -> Prepared:
        """Return the operation on the case's numbers in ``dtype``."""
        ...

    def read(self, tensor: Any) -> tuple[Array, str]:
        """Return a tensor's values and the canonical name of its dtype."""
        ...
