"""One number of torch's CPU generator, as a seed gives it.

Source: ``aten/src/ATen/core/MT19937RNGEngine.h`` and ``DistributionsHelper.h``, torch 2.13.0:
24 bits of one draw for a share, 53 of two draws for each half of a Box-Muller pair.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["Draws"]


class Draws:
    """The numbers that ``torch.Generator().manual_seed(seed)`` gives one by one."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed % 2**32)._bit_generator
        self._left: float | None = None

    def share(self) -> float:
        """Return torch.rand(1): a number in [0, 1)."""
        return float(np.float32(int(self._twister.random_raw()) % 2**24 / 2**24))

    def normal(self) -> float:
        """Return torch.randn(1)."""
        if self._left is not None:
            made, self._left = self._left, None
            return float(np.float32(made))
        turn, height = self._double(), self._double()
        length, angle = math.sqrt(-2 * math.log1p(-height)), 2 * math.pi * turn
        self._left = length * math.sin(angle)
        return float(np.float32(length * math.cos(angle)))

    def _double(self) -> float:
        high, low = (int(self._twister.random_raw()) for _ in "ab")
        return (((high << 32) | low) % 2**53) / 2**53
