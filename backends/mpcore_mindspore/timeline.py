"""What of a step was open when: phases and layers by the clock that the Profiler uses."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mindspore import Parameter, Tensor, ops

from mpcore.backend.profiler import LOSS
from mpcore_mindspore.casting import FLOATS
from mpcore_mindspore.layers import leaves
from mpcore_mindspore.step import TrainCell
from mpcore_mindspore.tap import tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Place", "Timeline", "watched"]


class Place(NamedTuple):
    """A phase of the step, and the layer; None for none."""

    phase: str
    layer: str | None


_AROUND = Place("step", None)


class Timeline:
    """Phases and layers of steps that run while it watches."""

    def __init__(self, model: Any) -> None:
        """Know the layers of ``model``."""
        self._paths = {id(cell): path for path, (cell, _) in leaves(model).items()}
        self._moments: list[int] = []
        self._places: list[Place] = []
        self._stack: list[str] = []

    def move(self, phase: str, layer: str | None) -> None:
        """From now on, this is where kernels run."""
        self._moments.append(time.time_ns())
        self._places.append(Place(phase, layer))

    def place(self, moment: int) -> Place:
        """Return where a kernel ran that began at ``moment``, in nanoseconds."""
        index = bisect_right(self._moments, moment) - 1
        return self._places[index] if index >= 0 else _AROUND

    def layer_of(self, cell: Any) -> str | None:
        """Return the path of a layer; None for a Cell that the model does not list."""
        return self._paths.get(id(cell))

    def around(self, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``loss_fn`` such that its beginning and end are known."""

        def loss(*batch: Any) -> Any:
            self.move("forward", LOSS)
            result = loss_fn(*batch)
            self.move("backward", LOSS)
            return result

        return loss

    @contextlib.contextmanager
    def call(self, path: str) -> Iterator[str]:
        """Be inside a call of a layer; yields the path of the one around it."""
        outer = self._stack[-1] if self._stack else LOSS
        self._stack.append(path)
        self.move("forward", path)
        try:
            yield outer
        finally:
            self._stack.pop()
            self.move("forward", outer)


@contextlib.contextmanager
def watched(timeline: Timeline) -> Iterator[None]:
    """Follow calls of Cells, gradients between them, and the parts of train cells."""
    with contextlib.ExitStack() as stack:
        for name, make in (("differentiate", _gradients), ("commit", _update)):
            own = vars(TrainCell)[name]
            stack.callback(setattr, TrainCell, name, own)
            setattr(TrainCell, name, make(timeline, own))
        stack.enter_context(tapped(partial(_cell_call, timeline)))
        yield


def _gradients(timeline: Timeline, original: Any) -> Any:
    def ended(function: Any) -> Any:
        def run(*args: Any) -> Any:
            result = function(*args)
            timeline.move("step", None)  # what follows, such as rounding, is no backward pass
            return result

        return run

    def differentiate(self: Any, *args: Any) -> Any:
        own, self.grad_fns = self.grad_fns, tuple(map(ended, self.grad_fns))
        try:
            return original(self, *args)
        finally:
            self.grad_fns = own

    return differentiate


def _update(timeline: Timeline, original: Any) -> Any:
    def commit(self: Any, *args: Any) -> Any:
        timeline.move("optimizer", None)
        try:
            return original(self, *args)
        finally:
            timeline.move("step", None)

    return commit


def _cell_call(
    timeline: Timeline, cell: Any, run: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    path = timeline.layer_of(cell)
    if path is None:
        return run(*args, **kwargs)
    with timeline.call(path) as outer:
        args = _told(args, lambda: timeline.move("backward", outer))
        outputs = run(*args, **kwargs)
        return _told(outputs, lambda: timeline.move("backward", path))


def _told(value: Any, arrived: Callable[[], None]) -> Any:
    """Return ``value`` such that ``arrived`` is called when its gradient is there."""

    def note(grad: Any) -> Any:
        arrived()
        return grad

    if isinstance(value, Parameter):
        return value
    if isinstance(value, Tensor):
        return ops.InsertGradientOf(note)(value) if value.dtype in FLOATS else value
    if type(value) in (tuple, list):
        return type(value)(_told(item, arrived) for item in value)
    return value
