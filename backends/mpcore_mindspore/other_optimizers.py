"""Optimizers that were made over the Parameters of a prepared network beside its own.

They may be older than ``prepare`` or come later, so the classes are asked, not the instances:
what stands for ``construct`` in a class is looked up by eager calls and by the graph compiler
alike, asks whose Parameters the optimizer holds, and hands out the function that was there. The
optimizers that were given to ``prepare``, and those inside of them, are not asked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import nn
from mindspore.experimental import optim

from mpcore._lib.in_classes import InClasses
from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CONSTRUCTS", "ask", "ask_no_more", "check_unshared"]

_OWN = "_mpcore_own"  # attribute of optimizers that were prepared
_ASK = "_mpcore_check_move"  # attribute of Parameters: raises GuardError unless their guard is open
_bases = (nn.Optimizer, optim.Optimizer)


class _Construct:
    """Stands for the ``construct`` in a class of optimizers."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __get__(self, optimizer: Any, kind: type | None = None) -> Any:
        if optimizer is not None and _OWN not in vars(optimizer):
            for param in getattr(optimizer, "parameters", ()):
                check = vars(param).get(_ASK)
                if check is not None:
                    check(type(optimizer).__name__)
        return self.original.__get__(optimizer, kind)


CONSTRUCTS = [InClasses(base, "construct", _Construct) for base in _bases]


def check_unshared(net: nn.Cell) -> None:
    """Raise BackendError if another prepared network holds Parameters of ``net``."""
    for param in net.get_parameters():
        if _ASK in vars(param):
            msg = (
                f"`net` must not hold Parameters of another prepared network, {param.name} is "
                "one: one plan would undo the other; prepare one network that holds all, or "
                "call release() of the other before"
            )
            raise BackendError(msg)


def ask(params: Iterable[Any], own: Iterable[Any], check: Callable[[str], None]) -> None:
    """Let ``check(name of the class)`` be called before other optimizers move ``params``.

    It is while ``CONSTRUCTS`` stand.

    Args:
        params: Parameters of the network, and of what is kept of them in float32.
        own: the optimizers that were prepared.
        check: raises GuardError unless the guard is open.
    """
    for param in params:
        setattr(param, _ASK, check)
    for part in _parts(own):
        vars(part)[_OWN] = True


def ask_no_more(params: Iterable[Any], own: Iterable[Any]) -> None:
    """Take back what ``ask`` did."""
    for param in params:
        vars(param).pop(_ASK, None)
    for part in _parts(own):
        vars(part).pop(_OWN, None)


def _parts(optimizers: Iterable[Any]) -> list[Any]:
    each = [cell for one in optimizers for _, cell in one.cells_and_names()]
    return [cell for cell in each if isinstance(cell, _bases)]
