"""Networks that ms.jit compiles; the loop around them stays as it is."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

from mpcore_port_runtime.recorded import recording
from mpcore_port_runtime.refusal import PortWarning
from mpcore_port_runtime.regions import autocast_state
from mpcore_port_runtime.training import NotCompiled, place_in_loss

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compiled"]

_MOST = 8
"""Graphs of one Cell in one loss."""


def compiled(network: Any) -> Any:
    """Have ms.jit compile what a Cell constructs, forward and backward; return the Cell.

    One graph for each call in each loss, each autocast region that is in (a graph does not look
    at regions), each mode of training, and each shape of its inputs. A Cell that cannot be
    compiled runs eagerly, with a warning that says why. What is no Cell, or is compiled, is
    returned as it is.

    Note:
        One graph for two losses has wrong gradients in mindspore 2.10.0 where its input needs a
        gradient in one and not in the other, as a discriminator's.
    """
    if isinstance(network, nn.Cell) and "construct" not in vars(network):
        network.construct = Compiled(network, network.construct.__func__)
    return network


class Compiled:
    """``construct`` of one Cell."""

    def __init__(self, cell: Any, construct: Callable[..., Any]) -> None:
        self._cell, self._construct = cell, construct
        self._graphs: dict[Any, Callable[..., Any]] = {}
        self._eager = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for where and how it is called."""
        method = self._construct.__get__(self._cell)
        if self._eager or recording():  # a graph for each loss; of what is recorded none is known
            return method(*args, **kwargs)
        cells = [cell for _, cell in self._cell.cells_and_names()]
        place = place_in_loss(self)
        modes = tuple(cell.training for cell in cells)
        frozen = tuple(not param.requires_grad for param in self._cell.get_parameters())
        key = place, autocast_state(), modes, frozen
        if key in self._graphs:
            return self._graphs[key](*args, **kwargs)
        wrapped = [cell for cell in cells if _is_wrapped(cell)]
        if wrapped:
            self.give_up(f"a decorator of {type(wrapped[0]).__name__}.construct would get lost")
            return method(*args, **kwargs)
        if place is not None and place[1] >= _MOST:
            self.give_up(f"it is called more than {_MOST} times in one loss")
            return method(*args, **kwargs)
        graph = ms.jit(_runner(method), fullgraph=True)  # else no gradient of what runs in Python
        try:
            made = graph(*args, **kwargs)
        except Exception as exc:  # if it is no matter of compiling, it comes up again
            self.give_up(" ".join(str(exc).split())[:300])
            if place is not None:  # a gradient is being recorded, and that is broken now
                raise NotCompiled from exc
            return method(*args, **kwargs)
        self._graphs[key] = graph
        return made

    def give_up(self, why: str) -> None:
        """Run eagerly from now on, with a warning."""
        self._eager = True
        text = f"{type(self._cell).__name__} is not compiled, it runs eagerly: {why}"
        warnings.warn(text, PortWarning, stacklevel=4)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return Compiled(copy.deepcopy(self._cell, memo), self._construct)


def _runner(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of its own: MindSpore notes on it which region it was compiled in."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return run


def _is_wrapped(cell: Any) -> bool:
    """Return whether ms.jit would read another function than the one that runs."""
    cls = type(cell)
    return not cls.__module__.startswith("mindspore.") and hasattr(cls.construct, "__wrapped__")
