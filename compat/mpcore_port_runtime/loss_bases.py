"""What losses of a script's own are made of: torch.nn.modules.loss._Loss, _WeightedLoss.

Source: torch/nn/modules/loss.py and torch/nn/_reduction.py (legacy_get_string), torch 2.13.0.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn

__all__ = ["Loss", "WeightedLoss"]  # reduction_of is for the rest of the runtime


def reduction_of(size_average: bool | None, reduce: bool | None) -> str:
    """Return the reduction that two switches of old torch say; None stands for True."""
    if reduce is not None and not reduce:
        return "none"
    return "sum" if size_average is not None and not size_average else "mean"


class Loss(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A Cell that knows its ``reduction``, as torch's ``_Loss``."""

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        """Keep the reduction; the older two switches win, as in torch."""
        super().__init__()
        asked = size_average is not None or reduce is not None
        self.reduction = reduction_of(size_average, reduce) if asked else reduction


class WeightedLoss(Loss):
    """A loss with a weight for each class, a buffer, as torch's ``_WeightedLoss``."""

    def __init__(
        self,
        weight: Any = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        """Keep the weights beside the reduction."""
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
