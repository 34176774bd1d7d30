"""MindSpore's own executors, which have no public name; their module moved with 2.9."""

from __future__ import annotations

try:
    from mindspore.graph.api import _cell_graph_executor, _pynative_executor
except ModuleNotFoundError:
    from mindspore.common.api import _cell_graph_executor, _pynative_executor

__all__ = ["_cell_graph_executor", "_pynative_executor", "is_grad_enabled"]


def is_grad_enabled() -> bool:
    """Return whether nothing like ``no_grad`` is around."""
    return bool(_pynative_executor.enable_grad())
