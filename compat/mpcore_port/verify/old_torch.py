"""What originals ask of torch as it was before 0.4, for their steps to run beside their ports.

Until torch 0.3 a loss was a tensor of one number with one dimension, and ``loss.data[0]`` a number
of Python; ports to MindSpore read it so.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["AS_BEFORE", "install", "is_of_old_torch"]

AS_BEFORE = "torch before 0.4: x[0] of one number is that number; with torch of today it raises"
_RAISED = "invalid index of a 0-dim tensor"


def is_of_old_torch(words: str) -> bool:
    """Return whether an error is that of a script which was written for torch before 0.4."""
    return _RAISED in words


def install(wanted: bool) -> None:
    """Let the first of one number be that number, in this process, if that is ``wanted``."""
    torch = sys.modules.get("torch")
    if not wanted or torch is None or "mindspore" in sys.modules:
        return
    original = torch.Tensor.__getitem__

    def first(tensor: Any, index: Any) -> Any:
        if type(index) is int and not index and not tensor.dim():
            return tensor if tensor.requires_grad else tensor.item()
        return original(tensor, index)

    torch.Tensor.__getitem__ = first  # this process alone
