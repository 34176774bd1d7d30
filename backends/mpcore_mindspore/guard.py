"""Keep an exception inside an eager Cell from changing how later Cells run."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn, ops
from mindspore._c_expression import MixedPrecisionType

from mpcore.errors import BackendError
from mpcore_mindspore.executors import _pynative_executor
from mpcore_mindspore.reaching import warn_of_decay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CellCall", "Given", "Reaches", "check_alone", "guarded", "undisturbed"]

_DIFFERENTIATES = ("_pynative_func_grad_forward", "_complex_call")


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
    except BaseException as error:
        _clear_behind(error)
        raise
    finally:
        _DEPTH.blocks -= 1


def _clear_behind(error: BaseException) -> None:
    """Clear the eager executor; what fails in that, of what it had yet to run, is noted only."""
    try:
        _pynative_executor.clear_res()
    except Exception as late:  # any kernel's
        error.add_note(f"an operation before it failed as well: {str(late).partition(chr(10))[0]}")
        _pynative_executor.clear_res()


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


def check_alone(cell: nn.Cell) -> None:
    """Raise BackendError in the middle of somebody else's differentiation; forget one that failed.

    MindSpore keeps recording after a function that was differentiated has raised, and the next
    step would fail in its backward pass.
    """
    if not (cell.requires_grad or _pynative_executor.grad_flag()):
        return
    if cell.requires_grad or _is_inside():
        msg = (
            "a step must not be differentiated, it has a backward pass of its own: call "
            "`amp.step` or the train cell by itself, not in `value_and_grad`, "
            "`nn.TrainOneStepCell` or a Cell after `set_grad()`"
        )
        raise BackendError(msg)
    _pynative_executor.clear_res()
    _pynative_executor.set_grad_flag(False)


def _is_inside() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        home = str(frame.f_globals.get("__name__")).partition(".")[0]
        if home == "mindspore" and frame.f_code.co_name in _DIFFERENTIATES:
            return True
    return False


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


class Reaches(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Refuses in eager mode a loss that no gradient can come back from; in a graph it is not there.

    MindSpore gives zeros for it: a step would be taken that moves nothing, or, with momentum, on.
    """

    def __init__(self, params: Sequence[Any], decays: Sequence[bool] = ()) -> None:
        """Look at losses that are differentiated for ``params``; of some an optimizer decays."""
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "params", tuple(params))
        object.__setattr__(self, "decays", tuple(decays))

    def __call__(self, loss: Any) -> Any:
        """Raise BackendError if the loss is a constant though some of the Parameters are not."""
        if not loss._requires_grad and any(param.requires_grad for param in self.params):
            msg = (
                "`loss` must depend on Parameters that require gradients, got a constant; it was "
                "computed under ops.stop_gradient, or made from numbers"
            )
            raise BackendError(msg)
        if self.decays:  # once: what is not reached by the first loss mostly never is
            warn_of_decay(loss, self.params, self.decays)
            object.__setattr__(self, "decays", ())
        return loss

    def construct(self, loss: Any) -> Any:
        """Do nothing."""
        return loss


class Given(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """Lets the first batch in eager mode be constants; in a graph it is not there.

    MindSpore counts the inputs of what is differentiated as if they wanted gradients, and so
    whatever is computed from them: then a loss would never be a constant.
    """

    def __init__(self) -> None:
        """Wait for the first batch."""
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "waits", True)

    def __call__(self, *batch: Any) -> Any:
        """Return the batch."""
        if not self.waits:
            return batch
        object.__setattr__(self, "waits", False)
        return tuple(map(_constant, batch))

    def construct(self, *batch: Any) -> Any:
        """Return the batch."""
        return batch


def _constant(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ops.stop_gradient(value)
    if type(value) in (tuple, list):
        return type(value)(map(_constant, value))
    if type(value) is dict:
        return {key: _constant(item) for key, item in value.items()}
    return value
