"""Tell who writes a MindSpore checkpoint that lacks float32 values of a prepared network.

``save_checkpoint`` and what calls it, ``ModelCheckpoint`` among them, hand whatever they were given
to one function. What stands for it looks whether the optimizers' float32 Parameters come with the
network's: they do in the file of a train cell.

Source: mindspore/train/serialization.py, mindspore 2.10.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import Parameter, nn
from mindspore.train import serialization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mpcore_mindspore.master_weights import MasterState

__all__ = ["SAVES", "mark", "unmark"]

_NAME = "_convert_save_obj_to_param_list"
_KEPT = "_mpcore_kept"  # attribute of 16-bit Parameters: where their values are, and who tells


def mark(states: Iterable[MasterState], tell: Callable[[], None]) -> None:
    """Let ``tell`` be called when a checkpoint has a 16-bit Parameter, not its float32 values."""
    for state in states:
        setattr(state.low, _KEPT, (state.master, tell))


def unmark(states: Iterable[MasterState]) -> None:
    """Take back what ``mark`` did."""
    for state in states:
        vars(state.low).pop(_KEPT, None)


class _Saves:
    """What stands in the place of the function, while a network is prepared."""

    def __init__(self) -> None:
        self._before: Any = None

    def begin(self) -> None:
        """Put it there; a second call does nothing."""
        if self._before is None:
            self._before = getattr(serialization, _NAME)
            setattr(serialization, _NAME, self._converted)

    def end(self) -> None:
        """Put back what stood there; a second call does nothing."""
        if self._before is not None:
            setattr(serialization, _NAME, self._before)
            self._before = None

    def _converted(self, saved: Any, *rest: Any) -> Any:
        params = _parameters(saved)
        ids = {id(param) for param in params}
        for param in params:
            master, tell = vars(param).get(_KEPT, (None, None))
            if tell is not None and id(master) not in ids:
                tell()
        return self._before(saved, *rest)


SAVES = _Saves()


def _parameters(saved: Any) -> list[Any]:
    if isinstance(saved, nn.Cell):
        return list(saved.get_parameters())
    each = saved.values() if isinstance(saved, dict) else saved
    found = [item.get("data") if isinstance(item, dict) else item for item in each]
    return [item for item in found if isinstance(item, Parameter)]
