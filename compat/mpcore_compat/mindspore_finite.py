"""The finiteness test of ``mindspore.amp``, in the spellings of old and new versions."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, amp, ops

__all__ = ["all_finite", "init_status"]

_map = ops.HyperMap()


def _finite(grad: Any) -> Any:
    # bfloat16 has no IsFinite kernel on CPU, and its range is float32's.
    if grad.dtype == ms.bfloat16:
        grad = grad.astype(ms.float32)
    return ops.isfinite(grad).all()


def all_finite(inputs: Any, status: Any = None, *, safe: bool = False) -> Any:
    """Return whether no element of ``inputs`` is inf or NaN; bool Tensor, shape ().

    It is MindSpore's own function, on Ascend (not run) too, where it reads and clears the
    device's flag. ``safe`` adds what that refuses: bfloat16 on CPU, and no tensor at all, which
    is finite.

    Source: mindspore/amp.py of MindSpore 2.10.0; up to about 2.0 it took ``status``.

    Args:
        inputs: tuple or list of Tensors.
        status: what ``init_status`` gave; not needed.
        safe: also take bfloat16 and an empty tuple.

    Raises:
        Exception: without ``safe``, an empty ``inputs``; with MindSpore's own type and message.
    """
    if not safe:
        return amp.all_finite(inputs)
    if len(inputs) == 0:
        return Tensor(True)
    return ops.stack(_map(_finite, inputs)).all()


def init_status() -> Any:
    """Clear the device's overflow flag before a forward pass; None where there is none.

    Source: mindspore/amp.py of MindSpore 2.0; 2.10.0 no longer has it. On Ascend it was not run:
    there the flag is cleared by MindSpore's own ``all_finite``, which clears what it reads.
    """
    if ms.get_context("device_target") == "Ascend":
        amp.all_finite((Tensor(0.0, ms.float32),))
    return None
