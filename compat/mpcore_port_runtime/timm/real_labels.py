"""timm's count of right answers by ImageNet's labels of a second look, which may be several.

Source: timm 1.0.31 ``data/real_labels.py``; of 0.4.12 ``data/transforms.py`` for ``_pil_interp``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import ops
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RealLabelsImagenet", "pil_interp"]

_WAYS = {"bicubic": "BICUBIC", "lanczos": "LANCZOS", "hamming": "HAMMING"}


def pil_interp(method: str) -> Any:
    """Return PIL's way of resampling by a word; of words that timm does not know, bilinear."""
    return Image.Resampling[_WAYS.get(method, "BILINEAR")]


class RealLabelsImagenet:
    """timm.data.RealLabelsImagenet: of pictures in the order of their files.

    Raises:
        NotImplementedError: ``real_json`` is not given; timm has the labels in itself.
    """

    def __init__(
        self, filenames: Sequence[str], real_json: Any = None, topk: Sequence[int] = (1, 5)
    ) -> None:
        if real_json is None:
            msg = "`real_json` must be a file: the labels that come with timm are not here"
            raise NotImplementedError(msg)
        every = json.loads(Path(real_json).read_text("utf-8"))
        names = (f"ILSVRC2012_val_{place + 1:08d}.JPEG" for place in range(len(every)))
        self.real_labels: dict[str, list[int]] = dict(zip(names, every, strict=True))
        self.filenames = filenames
        if len(self.filenames) != len(self.real_labels):
            msg = f"{len(self.filenames)} pictures, and labels of {len(self.real_labels)}"
            raise AssertionError(msg)
        self.topk = topk
        self.is_correct: dict[int, list[bool]] = {k: [] for k in topk}
        self.sample_idx = 0

    def add_result(self, output: Any) -> None:
        """Count a batch of scores; pictures of no label are left out."""
        best = ops.topk(output, max(self.topk), -1)[1].asnumpy()
        for row in best:
            name = os.path.basename(self.filenames[self.sample_idx])
            labels = self.real_labels[name]
            self.sample_idx += 1
            if not labels:
                continue
            for k in self.topk:
                self.is_correct[k].append(any(int(one) in labels for one in row[:k]))

    def get_accuracy(self, k: int | None = None) -> Any:
        """Return per cent of right answers among the best ``k``, or of each ``k``."""
        if k is not None:
            return float(np.mean(self.is_correct[k])) * 100
        return {one: float(np.mean(self.is_correct[one])) * 100 for one in self.topk}
