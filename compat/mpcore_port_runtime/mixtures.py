# ruff: noqa: NPY002  # the stream that scripts draw from
"""Batches that are mixed with themselves, back to front.

Source: timm 1.0.9 ``data/mixup.py``; numpy draws the same numbers in the same order. Compared with
what it gave. timm 1.0.31 cuts out boxes of odd sizes one pixel wider, and draws the places of
``cutmix_minmax`` from one more; that is not done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore_port_runtime.in_place import put

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mixup"]

_Box = tuple[int, int, int, int]


class Mixup:
    """timm.data.Mixup: pictures are mixed in place, labels become a share for each class."""

    def __init__(
        self,
        mixup_alpha: float = 1.0,
        cutmix_alpha: float = 0.0,
        cutmix_minmax: Sequence[float] | None = None,
        prob: float = 1.0,
        switch_prob: float = 0.5,
        mode: str = "batch",
        correct_lam: bool = True,
        label_smoothing: float = 0.1,
        num_classes: int = 1000,
    ) -> None:
        self.mixup_alpha, self.cutmix_alpha = mixup_alpha, cutmix_alpha
        self.cutmix_minmax = cutmix_minmax
        if cutmix_minmax is not None:
            self.cutmix_alpha = 1.0
        self.mix_prob, self.switch_prob = prob, switch_prob
        self.label_smoothing, self.num_classes = label_smoothing, num_classes
        self.mode, self.correct_lam = mode, correct_lam
        self.mixup_enabled = True

    def __call__(self, x: Any, target: Any) -> tuple[Any, Any]:
        """Return the batch, mixed, and its shares."""
        if len(x) % 2:
            msg = f"`x` must be of an even number of samples, got {len(x)}"
            raise AssertionError(msg)
        if self.mode == "elem":
            lam = self._mix_samples(x, len(x))
        elif self.mode == "pair":
            lam = self._mix_samples(x, len(x) // 2)
        else:
            lam = self._mix_batch(x)
        first, second = self._shares(target), self._shares(target.flip((0,)))
        return x, first * lam + second * (1.0 - lam)

    def _shares(self, target: Any) -> Any:
        off = self.label_smoothing / self.num_classes
        on = 1.0 - self.label_smoothing + off
        hit = target.astype(ms.int64).reshape((-1, 1)) == ops.arange(self.num_classes)
        return ops.where(hit, Tensor(on, ms.float32), Tensor(off, ms.float32))

    def _mix_batch(self, x: Any) -> float:
        lam, cuts = self._drawn_once()
        if lam == 1.0:
            return 1.0
        flipped = x.flip((0,))
        if cuts:
            box, lam = self._box(x.shape, lam)
            put(x, ops.where(_inside([box], x.shape), flipped, x))
        else:
            put(x, x * lam + flipped * (1.0 - lam))
        return float(lam)

    def _mix_samples(self, x: Any, count: int) -> Any:
        """Mix each of the first ``count`` samples; where that is half of them, the others alike."""
        lams, cuts = self._drawn(count)
        boxes: list[_Box] = [(0, 0, 0, 0)] * count
        shares = lams.copy()
        for place in range(count):
            if lams[place] != 1.0 and cuts[place]:
                boxes[place], lams[place] = self._box(x[place].shape, lams[place])
                shares[place] = 1.0
        if count < len(x):
            lams, shares = (np.concatenate((one, one[::-1])) for one in (lams, shares))
            boxes += boxes[::-1]
        flipped = x.flip((0,))
        kept = Tensor(shares.reshape((-1,) + (1,) * (x.ndim - 1)))
        mixed = ops.where(kept == 1.0, x, (x * kept + flipped * (1.0 - kept)).astype(x.dtype))
        put(x, ops.where(_inside(boxes, x.shape), flipped, mixed))
        return Tensor(lams, x.dtype).expand_dims(1)

    # --- what numpy draws -------------------------------------------------------------------------

    def _drawn(self, count: int) -> tuple[Any, Any]:
        lam = np.ones(count, dtype=np.float32)
        cuts = np.zeros(count, dtype=bool)
        if not self.mixup_enabled:
            return lam, cuts
        if self.mixup_alpha > 0.0 and self.cutmix_alpha > 0.0:
            cuts = np.random.rand(count) < self.switch_prob
            cut = np.random.beta(self.cutmix_alpha, self.cutmix_alpha, size=count)
            mixed = np.where(cuts, cut, np.random.beta(*(self.mixup_alpha,) * 2, size=count))
        elif self.mixup_alpha > 0.0:
            mixed = np.random.beta(self.mixup_alpha, self.mixup_alpha, size=count)
        else:
            self._check_alphas()
            cuts = np.ones(count, dtype=bool)
            mixed = np.random.beta(self.cutmix_alpha, self.cutmix_alpha, size=count)
        return np.where(np.random.rand(count) < self.mix_prob, mixed.astype(np.float32), lam), cuts

    def _drawn_once(self) -> tuple[float, bool]:
        if not self.mixup_enabled or not np.random.rand() < self.mix_prob:
            return 1.0, False
        cuts = False
        if self.mixup_alpha > 0.0 and self.cutmix_alpha > 0.0:
            cuts = bool(np.random.rand() < self.switch_prob)
        elif self.mixup_alpha <= 0.0:
            self._check_alphas()
            cuts = True
        alpha = self.cutmix_alpha if cuts else self.mixup_alpha
        return float(np.random.beta(alpha, alpha)), cuts

    def _check_alphas(self) -> None:
        if self.cutmix_alpha <= 0.0:
            msg = "`mixup_alpha` or `cutmix_alpha` must be above 0, or `cutmix_minmax` be given"
            raise AssertionError(msg)

    def _box(self, shape: Sequence[int], lam: Any) -> tuple[_Box, Any]:
        """Return the edges of what is cut out, and the share that is left."""
        high, wide = shape[-2:]
        if self.cutmix_minmax is not None:
            box = _between(high, wide, self.cutmix_minmax)
        else:
            box = _of_share(high, wide, lam)
        if self.correct_lam or self.cutmix_minmax is not None:
            area = (box[1] - box[0]) * (box[3] - box[2])
            lam = 1.0 - area / float(high * wide)
        return box, lam


def _of_share(high: int, wide: int, lam: Any) -> _Box:
    ratio = np.sqrt(1 - lam)
    tall, broad = int(high * ratio), int(wide * ratio)
    y, x = np.random.randint(0, high), np.random.randint(0, wide)
    top, bottom = np.clip([y - tall // 2, y + tall // 2], 0, high)
    left, right = np.clip([x - broad // 2, x + broad // 2], 0, wide)
    return int(top), int(bottom), int(left), int(right)


def _between(high: int, wide: int, ends: Sequence[float]) -> _Box:
    least, most = ends
    tall = np.random.randint(int(high * least), int(high * most))
    broad = np.random.randint(int(wide * least), int(wide * most))
    top, left = np.random.randint(0, high - tall), np.random.randint(0, wide - broad)
    return top, top + tall, left, left + broad


def _inside(boxes: Sequence[_Box], shape: Sequence[int]) -> Any:
    """Return which pixels are inside of the box of their sample."""
    mask = np.zeros((len(boxes), 1, *shape[-2:]), dtype=bool)
    for place, (top, bottom, left, right) in enumerate(boxes):
        mask[place, 0, top:bottom, left:right] = True
    return Tensor(mask)
