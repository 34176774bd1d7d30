"""Keep an exception inside an eager Cell from changing how later Cells run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mindspore.graph.api import _pynative_executor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["guarded"]


@contextmanager
def guarded() -> Iterator[None]:
    """Clear the eager executor when an exception leaves the block, then let it pass.

    MindSpore sets a Cell's precision before ``construct`` and takes it back after it, with
    nothing in between to catch an exception: without this, every later operation of the
    process would run in that precision, and the recording of gradients would stay open.

    Source: ``Cell._complex_call`` in mindspore/nn/cell.py, mindspore 2.10.0. ``clear_res`` is
    not public; on CPU it restores both, on Ascend it was not run.
    """
    try:
        yield
    except BaseException:
        _pynative_executor.clear_res()
        raise
