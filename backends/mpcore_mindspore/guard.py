"""Keep an exception inside an eager Cell from changing how later Cells run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore._c_expression import MixedPrecisionType
from mindspore.graph.api import _pynative_executor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mindspore import nn

__all__ = ["CellCall", "guarded", "undisturbed"]


class _Depth:
    """How many blocks of ``guarded`` are open: they clear the executor when an error leaves them.

    One for the process, as the executor is.
    """

    def __init__(self) -> None:
        self.blocks = 0


_DEPTH = _Depth()


@contextmanager
def guarded() -> Iterator[None]:
    """Clear the eager executor when an exception leaves the block, then let it pass.

    MindSpore sets a Cell's precision before ``construct`` and takes it back after it, with
    nothing in between to catch an exception: without this, every later operation of the
    process would run in that precision, and the recording of gradients would stay open.

    Source: ``Cell._complex_call`` in mindspore/nn/cell.py, mindspore 2.10.0. ``clear_res`` is
    not public; on CPU it restores both, on Ascend it was not run.
    """
    _DEPTH.blocks += 1
    try:
        yield
    except BaseException:
        _pynative_executor.clear_res()
        raise
    finally:
        _DEPTH.blocks -= 1


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run a block of ``guarded`` in nobody's precision.

    A Cell that failed before, of a network that is not prepared, has left its own; to clear that
    would throw away compiled operations, and double the time of a step. What is put over it here
    takes 1 us. It stays there when the block fails: ``guarded`` clears all of it.
    """
    _pynative_executor.set_mixed_precision_type(MixedPrecisionType.NOTSET)
    yield
    _pynative_executor.set_mixed_precision_type(MixedPrecisionType.NOTSET, is_push=False)


class CellCall:
    """Stands for the part of a Cell's call that sets a precision: a call that fails leaves none.

    Not inside ``guarded``, where what failed may be caught and the rest go on.
    """

    def __init__(self, cell: nn.Cell) -> None:
        """Stand for that of ``cell``."""
        self._cell = cell

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the Cell."""
        try:
            return type(self._cell)._complex_call(self._cell, *args, **kwargs)
        except BaseException:
            if not _DEPTH.blocks:
                _pynative_executor.clear_res()
            raise
