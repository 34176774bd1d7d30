"""What a network runs when it is called, asked for and set by name: torch's ``net.forward``."""

from __future__ import annotations

import inspect
from typing import Any

from mindspore import nn

__all__ = ["run_of", "set_run"]


def run_of(holder: Any, *default: Any) -> Any:
    """Return ``holder.forward``: of a Cell, or of a class of Cells, that is ``construct``."""
    return holder.construct if _is_cell(holder) else getattr(holder, "forward", *default)


def set_run(holder: Any, value: Any) -> None:
    """Run ``holder.forward = value``: a Cell that is called runs it, as a module of torch does.

    torch.nn.Module.__call__ asks for ``self.forward`` each time (torch 2.13, module.py).
    """
    if not _is_cell(holder):
        holder.forward = value
        return
    holder.construct = value
    if inspect.isclass(holder):
        if hasattr(holder, "forward"):
            holder.forward = value
    else:  # what an earlier call took for the signature
        object.__setattr__(holder, "_lazy_construct_sig", None)


def _is_cell(holder: Any) -> bool:
    return issubclass(holder if inspect.isclass(holder) else type(holder), nn.Cell)
