"""Boxes of torchvision: areas, overlaps, other forms, and which of several to keep.

Source: torchvision 0.28 ``ops/boxes.py``, ``ops/_box_convert.py``, ``ops/focal_loss.py`` and
``csrc/ops/cpu/nms_kernel.cpp``; what is kept is chosen by numpy, without gradients, as there.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

__all__ = [
    "batched_nms",
    "box_area",
    "box_convert",
    "box_iou",
    "clip_boxes_to_image",
    "generalized_box_iou",
    "nms",
    "remove_small_boxes",
    "sigmoid_focal_loss",
]


def _wide(x: Any) -> Any:
    """Return float32 of shorter floats, whole numbers of 64 bits where they have fewer than 32."""
    if x.dtype in (ms.float16, ms.bfloat16):
        return x.astype(ms.float32)
    return x.astype(ms.int32) if x.dtype in (ms.int8, ms.uint8, ms.int16) else x


def box_area(boxes: Any) -> Any:
    """Return the areas of boxes (x1, y1, x2, y2)."""
    wide = _wide(boxes)
    return (wide[..., 2] - wide[..., 0]) * (wide[..., 3] - wide[..., 1])


def _sides(low: Any, high: Any) -> Any:
    """Return the area between two corners, 0 where they have passed each other."""
    side = _wide(high - low)
    side = ops.maximum(side, ops.zeros_like(side))
    return side[..., 0] * side[..., 1]


def _shared(boxes1: Any, boxes2: Any) -> tuple[Any, Any]:
    """Return what each two boxes share, and what they cover together."""
    low = ops.maximum(boxes1[..., None, :2], boxes2[..., None, :, :2])
    high = ops.minimum(boxes1[..., None, 2:], boxes2[..., None, :, 2:])
    inside = _sides(low, high)
    return inside, box_area(boxes1)[..., None] + box_area(boxes2)[..., None, :] - inside


def box_iou(boxes1: Any, boxes2: Any) -> Any:
    """Return what each two boxes share of what they cover, (N, M)."""
    inside, whole = _shared(boxes1, boxes2)
    return inside / whole


def generalized_box_iou(boxes1: Any, boxes2: Any) -> Any:
    """Return overlaps less the empty share of the box around each two, (N, M)."""
    inside, whole = _shared(boxes1, boxes2)
    low = ops.minimum(boxes1[..., None, :2], boxes2[..., None, :, :2])
    high = ops.maximum(boxes1[..., None, 2:], boxes2[..., None, :, 2:])
    around = _sides(low, high)
    return inside / whole - (around - whole) / around


_FORMS = ("xyxy", "xywh", "cxcywh")


def box_convert(boxes: Any, in_fmt: str, out_fmt: str) -> Any:
    """Return boxes in another form.

    Raises:
        ValueError: a form is none of xyxy, xywh and cxcywh.
    """
    if in_fmt not in _FORMS or out_fmt not in _FORMS:
        msg = f"`in_fmt` and `out_fmt` must be among {_FORMS}, got {in_fmt!r}, {out_fmt!r}"
        raise ValueError(msg)
    if in_fmt == out_fmt:
        return boxes.copy()
    a, b, c, d = (boxes[..., number] for number in range(4))
    if in_fmt == "xywh":
        a, b, c, d = a, b, a + c, b + d
    elif in_fmt == "cxcywh":
        a, b, c, d = a - 0.5 * c, b - 0.5 * d, a + 0.5 * c, b + 0.5 * d
    if out_fmt == "xywh":
        return ops.stack((a, b, c - a, d - b), -1)
    if out_fmt == "cxcywh":
        return ops.stack(((a + c) / 2, (b + d) / 2, c - a, d - b), -1)
    return ops.stack((a, b, c, d), -1)


def clip_boxes_to_image(boxes: Any, size: tuple[int, int]) -> Any:
    """Return boxes cut to a picture of (height, width)."""
    height, width = size
    x, y = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return ops.stack((x, y), -1).reshape(boxes.shape)


def remove_small_boxes(boxes: Any, min_size: float) -> Any:
    """Return the numbers of boxes with no side below ``min_size``."""
    held = boxes.asnumpy()
    wide, high = held[:, 2] - held[:, 0], held[:, 3] - held[:, 1]
    return Tensor(np.flatnonzero((wide >= min_size) & (high >= min_size)), ms.int64)


def _kept(boxes: Any, scores: Any, limit: float) -> Any:
    """Return the numbers of boxes that no better one overlaps by more, best first."""
    x1, y1, x2, y2 = boxes.T
    areas = (x2 - x1) * (y2 - y1)
    order = np.argsort(-scores, kind="stable")
    left = np.ones(len(order), bool)
    for place, number in enumerate(order):
        if not left[place]:
            continue
        others = order[place + 1 :]
        wide = np.minimum(x2[number], x2[others]) - np.maximum(x1[number], x1[others])
        high = np.minimum(y2[number], y2[others]) - np.maximum(y1[number], y1[others])
        inside = np.maximum(0, wide) * np.maximum(0, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            overlap = inside / (areas[number] + areas[others] - inside)
        left[place + 1 :] &= ~(overlap > limit)
    return order[left]


def _array(x: Any) -> Any:
    return np.asarray(_wide(x).asnumpy() if isinstance(x, Tensor) else x)


def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the numbers of the boxes to keep, best first."""
    return Tensor(_kept(_array(boxes), _array(scores), iou_threshold), ms.int64)


_FEW = 4000


def batched_nms(boxes: Any, scores: Any, idxs: Any, iou_threshold: float) -> Any:
    """Return the numbers of the boxes to keep of each class, best first."""
    held, rated, kinds = _array(boxes), _array(scores), _array(idxs)
    if not held.size:
        return Tensor(np.zeros(0, np.int64))
    if held.size <= _FEW:
        apart = kinds.astype(held.dtype) * (held.max() + held.dtype.type(1))
        return Tensor(_kept(held + apart[:, None], rated, iou_threshold), ms.int64)
    found = []
    for kind in np.unique(kinds):
        places = np.flatnonzero(kinds == kind)
        found.append(places[_kept(held[places], rated[places], iou_threshold)])
    kept = np.sort(np.concatenate(found))
    return Tensor(kept[np.argsort(-rated[kept], kind="stable")], ms.int64)


def sigmoid_focal_loss(
    inputs: Any, targets: Any, alpha: float = 0.25, gamma: float = 2, reduction: str = "none"
) -> Any:
    """Return the focal loss of scores and 0 or 1."""
    p = ops.sigmoid(inputs)
    plain = ops.maximum(inputs, ops.zeros_like(inputs)) - inputs * targets
    cross = plain + ops.log1p(ops.exp(-ops.abs(inputs)))
    hit = p * targets + (1 - p) * (1 - targets)
    loss = cross * ((1 - hit) ** gamma)
    if alpha >= 0:
        loss = (alpha * targets + (1 - alpha) * (1 - targets)) * loss
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        msg = f"`reduction` must be 'none', 'mean' or 'sum', got {reduction!r}"
        raise ValueError(msg)
    return loss.mean() if reduction == "mean" else loss.sum()
