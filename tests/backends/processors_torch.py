"""What torch can do on this processor, asked of torch itself."""

from __future__ import annotations

import torch

_KERNELS = {"float16": "_is_mkldnn_fp16_supported", "bfloat16": "_is_mkldnn_bf16_supported"}
KEPT_FULL = "; full layer=LSTM"


def runs_lstm(dtype: str) -> bool:
    """Return whether oneDNN has an LSTM for an autocast region of this dtype."""
    return bool(getattr(torch.ops.mkldnn, _KERNELS[dtype])())


def with_lstm(policy: str) -> str:
    """Return a policy of an autocast region in which this processor trains an LSTM."""
    dtype = "float16" if "float16" in policy.replace("bfloat16", "") else "bfloat16"
    return policy if runs_lstm(dtype) else policy + KEPT_FULL
