"""Methods of torch's Module that a script's own class has anew, and those above them."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from mindspore import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["above", "asked_in_turn", "is_of_script", "own_first", "own_train"]

P = ParamSpec("P")
R = TypeVar("R")

_OURS = ("mindspore", "mpcore_port_runtime", "mindone")
_BELOW: dict[str, Callable[..., Any]] = {}
_SET_TRAIN = nn.Cell.set_train


def own_first(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that asks a Cell's class for its own method of the same name first."""
    name = function.__name__
    _BELOW[name] = function
    words = frozenset(signature(function).parameters)

    @wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        cell = args[0]
        if isinstance(cell, nn.Cell) and is_of_script(type(cell), name):
            return getattr(cell, name)(*args[1:], **kwargs)
        if not isinstance(cell, nn.Cell) and (
            not words.issuperset(kwargs) or _is_helper(cell, name)
        ):
            return getattr(cell, name)(*args[1:], **kwargs)  # an object's, with words of its own
        return function(*args, **kwargs)

    return cast("Callable[P, R]", asked)


def _is_helper(holder: Any, name: str) -> bool:
    """Return whether a class is asked itself, or an object of the script's with its own method.

    ``Helper.load_state_dict(net, state, True)`` takes what it says, whatever torch's takes. So
    does what stands around an optimizer, and shows its ``param_groups``.
    """
    if isinstance(holder, type):
        return not issubclass(holder, nn.Cell)
    return is_of_script(type(holder), name)


def is_of_script(kind: type, name: str) -> bool:
    """Return whether the first class that has a method is neither MindSpore's nor ours."""
    home = next((one for one in kind.__mro__ if name in vars(one)), None)
    return home is not None and home.__module__.partition(".")[0] not in _OURS


def asked_in_turn(cell: nn.Cell, names: tuple[str, ...]) -> bool:
    """Return whether a Cell in here has the first of names as its own method, or hooks by others.

    torch asks every module of a network as it saves or loads; so may a port where one answers.
    """
    own, *hooks = names
    return any(
        is_of_script(type(inner), own) or any(getattr(inner, held) for held in hooks)
        for _, inner in cell.cells_and_names()
    )


def above(parent: Any, name: str) -> Callable[..., Any]:
    """Return ``super().name`` as torch means it: a class's own, or what Module has."""
    cell = parent.__self__
    kinds = type(cell).__mro__
    behind = kinds[kinds.index(parent.__thisclass__) + 1 :]
    home = next((one for one in behind if name in vars(one)), None)
    if home is not None and home.__module__.partition(".")[0] not in _OURS:
        method: Callable[..., Any] = getattr(parent, name)
        return method

    def asked(*args: Any, **kwargs: Any) -> Any:
        return _BELOW[name](cell, *args, **kwargs)

    return asked


def start_training(cell: Any) -> Any:
    """Put a Cell into training mode as one that was just made is: no ``train`` of its own runs.

    What it holds, and was put into a mode before, stays in that: ``Sequential(*net.children())``.
    """
    cell._phase = "train"
    for _, inner in cell.cells_and_names():
        if inner is cell or "training" not in inner.get_flags():
            inner.add_flags(training=True)
    return cell


class own_train:  # noqa: N801  # a decorator
    """The decorator of a Cell's own ``train(self, mode=True)``: ``set_train`` is it, too.

    torch's Module.train calls ``train`` of what it holds (torch/nn/modules/module.py, 2.13.0);
    MindSpore's set_train sets flags (mindspore/nn/cell.py, 2.10.0). Behind the first class with
    such a method set_train of every Cell calls those below it.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __set_name__(self, owner: type, name: str) -> None:
        setattr(owner, name, self.method)
        if issubclass(owner, nn.Cell):
            owner.set_train = self.method  # type: ignore[attr-defined]
            nn.Cell.set_train = _set_train


@wraps(_SET_TRAIN)
def _set_train(self: Any, mode: bool = True) -> Any:
    # torch calls each train before the modes below it are set: `if self.training and not mode`
    before = [(inner, inner.training) for _, inner in self.cells_and_names() if inner is not self]
    _SET_TRAIN(self, mode)
    _tell(self, mode, {id(inner): training for inner, training in before})
    return self


def _tell(cell: Any, mode: bool, before: dict[int, bool]) -> None:
    for inner in cell.cells():
        if inner is not None and type(inner).set_train is not _set_train:
            for _, one in inner.cells_and_names():
                if id(one) in before:
                    one.add_flags(training=before[id(one)])
            inner.set_train(mode)
        elif inner is not None:
            _tell(inner, mode, before)
