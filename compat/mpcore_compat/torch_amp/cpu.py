"""The old spelling ``torch.cpu.amp``."""

from __future__ import annotations

import torch
from torch.cpu.amp import autocast

from mpcore_compat.torch_amp.old_spelling import OldSpelling

__all__ = ["GradScaler", "autocast"]


class GradScaler(OldSpelling, torch.cpu.amp.GradScaler):  # type: ignore[misc]
    """``mpcore_compat.torch_amp.GradScaler`` for "cpu"; warns as the original does."""

    device_type = "cpu"
