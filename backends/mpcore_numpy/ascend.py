"""An emulated Ascend device in saturation mode, for tests without one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from mpcore.numerics.overflow import OverflowDetector, saturate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

__all__ = ["EmulatedAscend", "emulated_ascend"]


class EmulatedAscend:
    """Stores numbers as a saturating device does, and remembers that it had to.

    Attributes:
        overflowed: the status register: sticky, cleared only by ``clear``.
        detector: reads it.
    """

    _stack: ClassVar[list[EmulatedAscend]] = []

    def __init__(self) -> None:
        self.overflowed = False
        self.detector = _Register(self)

    @classmethod
    def active(cls) -> EmulatedAscend | None:
        """Return the device that is being emulated, if any."""
        return cls._stack[-1] if cls._stack else None

    def store(self, values: npt.ArrayLike, dtype: str) -> npt.NDArray[np.float32]:
        """Return what the device stores for ``values`` in ``dtype``."""
        kept, overflowed = saturate(values, dtype)
        self.overflowed |= overflowed
        return kept

    def raise_flag(self) -> None:
        """Set the status register, as any overflow on the device does."""
        self.overflowed = True

    def clear(self) -> None:
        """Clear the status register."""
        self.overflowed = False


class _Register(OverflowDetector):
    kind, mode, localises = "status_register", "saturation", False

    def __init__(self, device: EmulatedAscend) -> None:
        self._device = device

    def begin(self) -> None:
        self._device.clear()

    def read(self, grads: Any) -> bool:
        return not self._device.overflowed

    def reduce(self, each: tuple[Any, ...], quiet: Any) -> tuple[Any, ...]:
        return tuple(bool(verdict and quiet) for verdict in each)

    def clear(self) -> None:
        self._device.clear()


@contextmanager
def emulated_ascend() -> Iterator[EmulatedAscend]:
    """Let every layer's values saturate inside the block, in forward and backward pass.

    Prepare the model inside it, and its overflow is read from the emulated status register;
    with ``detector="values"`` it is not, and goes unseen.
    """
    device = EmulatedAscend()
    EmulatedAscend._stack.append(device)
    try:
        yield device
    finally:
        EmulatedAscend._stack.remove(device)
