"""MindSpore's own executors, which have no public name; their module moved with 2.9."""

from __future__ import annotations

try:
    from mindspore.graph.api import _cell_graph_executor, _pynative_executor
except ModuleNotFoundError:
    from mindspore.common.api import _cell_graph_executor, _pynative_executor

__all__ = ["_cell_graph_executor", "_pynative_executor"]
