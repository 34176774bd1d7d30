"""What float32 means to the products of a device: IEEE, or fewer bits of mantissa."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mindspore as ms

if TYPE_CHECKING:
    from mpcore.policy.policy import Policy

__all__ = ["set_float32"]


def set_float32(policy: Policy, device: str) -> None:
    """Set what float32 means to the hardware, for the process; only Ascend has another meaning.

    "strict" forbids HF32 in products and convolutions and keeps the dtype that an operation was
    given; "fast" allows HF32. Products on CPU are IEEE float32 either way. Not run on Ascend.

    Source: mindspore/device_context/ascend/op_precision.py, mindspore 2.10.0.
    """
    if device != "Ascend" or policy.float32 == "native":
        return
    precision = ms.device_context.ascend.op_precision
    strict = policy.float32 == "strict"
    precision.matmul_allow_hf32(not strict)
    precision.conv_allow_hf32(not strict)
    if strict:
        precision.precision_mode("must_keep_origin_dtype")
