"""timm's RandomErasing as a transform of its own: boxes of a picture become 0 or noise.

Source: timm 1.0.9 ``data/random_erasing.py``. Boxes come from Python's numbers, in timm's order.
"""

from __future__ import annotations

import math
import random
from typing import Any

from mindspore import Tensor

from mpcore_port_runtime import vision

__all__ = ["RandomErasing"]


class RandomErasing:
    """timm.data.random_erasing.RandomErasing, of a tensor (C, H, W) or a batch of such."""

    def __init__(
        self,
        probability: float = 0.5,
        min_area: float = 0.02,
        max_area: float = 1 / 3,
        min_aspect: float = 0.3,
        max_aspect: float | None = None,
        mode: str = "const",
        min_count: int = 1,
        max_count: int | None = None,
        num_splits: int = 0,
        device: Any = "cuda",
    ) -> None:
        del device
        self.probability, self.min_area, self.max_area = probability, min_area, max_area
        self.log_aspect_ratio = (math.log(min_aspect), math.log(max_aspect or 1 / min_aspect))
        self.min_count, self.max_count = min_count, max_count or min_count
        self.num_splits, self.mode = num_splits, mode.lower()
        if self.mode not in ("", "const", "rand", "pixel"):
            raise AssertionError(self.mode)

    def __call__(self, input: Any) -> Any:
        """Return another tensor, with boxes erased."""
        array = input.asnumpy().copy()
        if array.ndim == 3:
            self._erase(array)
        else:
            first = len(array) // self.num_splits if self.num_splits > 1 else 0
            for one in array[first:]:
                self._erase(one)
        return Tensor(array)

    def _erase(self, x: Any) -> None:
        if random.random() > self.probability:
            return
        deep, high, wide = x.shape
        count = self.min_count
        if self.min_count != self.max_count:
            count = random.randint(self.min_count, self.max_count)
        for _ in range(count):
            for _ in range(10):
                area = random.uniform(self.min_area, self.max_area) * (high * wide) / count
                shape = math.exp(random.uniform(*self.log_aspect_ratio))
                tall, broad = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
                if broad < wide and tall < high:
                    top, left = random.randint(0, high - tall), random.randint(0, wide - broad)
                    x[:, top : top + tall, left : left + broad] = self._noise(deep, tall, broad)
                    break

    def _noise(self, deep: int, tall: int, broad: int) -> Any:
        if self.mode not in ("rand", "pixel"):
            return 0.0
        size = (deep, tall, broad) if self.mode == "pixel" else (deep, 1, 1)
        return vision.NUMBERS.get().standard_normal(size)

    def __repr__(self) -> str:
        """Return what it does, as timm's says it."""
        counts = f"({self.min_count}, {self.max_count})"
        return f"{type(self).__name__}(p={self.probability}, mode={self.mode}, count={counts})"
