"""Cells that recompute their forward pass: MindSpore keeps the one that they had at that call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from mindspore import nn

__all__ = ["check_recomputed"]

_PRECISION = ("fp16", "bf16", "fp32")


def check_recomputed(net: nn.Cell, *, replaced: bool) -> None:
    """Raise BackendError where a Cell would run uncast, or train Parameters that are not its own.

    Source: ``Cell.recompute`` in mindspore/nn/cell.py, mindspore 2.10.0.

    Args:
        net: the network, cast.
        replaced: whether it was given 16-bit Parameters in place of its own.
    """
    for path, cell in net.cells_and_names():
        cast = "construct" in vars(cell) or any(cell.get_flags().get(one) for one in _PRECISION)
        if (cast or replaced) and getattr(cell, "_recompute_cell", None) is not None:
            instead = "prepare by layer" if replaced else "call it on a Cell around the layer"
            msg = (
                f"`recompute()` of {path or 'the network'}, a {type(cell).__name__}, has kept the "
                f"forward pass and Parameters from before `prepare`: {instead} instead"
            )
            raise BackendError(msg)
