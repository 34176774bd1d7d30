"""The part of a step behind which weights have moved: all of it happens, or it is put back.

Until every optimizer has stepped, a fault means the state before the step; from then on, the
state after it: what is left to do is done, and the fault is raised behind it. An optimizer that
fails inside its own step may have moved some parameters already. That cannot be undone without
copies of all weights and slots, which no step makes; so it is said, and no further step is taken
until something is loaded.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn

    from mpcore.amp.guard import Guard
    from mpcore_torch.calls import Calls
    from mpcore_torch.master_weights import Masters

    State = dict[str, Any]

__all__ = ["Update"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_VERSION = attrgetter("_version")


class Update:
    """The update of one step.

    Attributes:
        moved: optimizers that have stepped, so far.
        follow: calls of ``after_step`` that are still to come.
        late: faults behind the point of no return; the step is whole all the same.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        follow: Iterable[Callable[[], Any]],
        end: Callable[[Update], None],
    ) -> None:
        """Plan it.

        Args:
            optimizers: those that move, by name, in order.
            follow: called when they have moved.
            end: does all the rest; may be called again after a fault in it.
        """
        self._optimizers, self._end = optimizers, end
        self.moved: list[torch.optim.Optimizer] = []
        self.follow = list(follow)
        self.late: list[BaseException] = []
        self._marks: list[_Mark] = []
        self._ended = False

    def run(self, master_weights: Masters, guard: Guard, calls: Calls) -> None:
        """Carry it out.

        Raises:
            BaseException: what an optimizer raised. What can be put back is; else ``calls`` are
                told that the step is torn, and a note of the error says so.
        """
        was_open = guard.open
        try:
            guard.open = was_open + 1
            for optimizer in self._optimizers.values():
                self._marks.append(_Mark(optimizer))
                self.moved.append(master_weights.step(optimizer))  # on one line: no fault between
            guard.open = was_open
            self.end()
        except BaseException as error:
            guard.open = was_open
            if len(self.moved) < len(self._optimizers):
                self._put_back(error, master_weights, calls)
                raise
            self.late.append(error)
            self.end()
        finally:
            # Slots that somebody has put others in the place of must not live on.
            self._marks = []
            self.late += master_weights.late
            master_weights.late = []

    def end(self) -> None:
        """Do what is left, whatever of it fails; every call of ``after_step`` is made once."""
        tries = len(self.follow) + 2
        while not self._ended:
            try:
                self._end(self)
                self._ended = True
            except BaseException as error:
                tries -= 1
                if not tries:
                    raise
                self.late.append(error)

    def _put_back(self, error: BaseException, master_weights: Masters, calls: Calls) -> None:
        names = list(self._optimizers)
        total = moved = 0
        for mark in self._marks:
            # An optimizer's own marks tell what of it moved; one that has ended moved all.
            total += mark.size
            done = len(self.moved) > self._marks.index(mark)
            moved += mark.size if done else mark.put_back(error, master_weights.put_back)
        master_weights.put_back = set()
        if not moved:
            return
        calls.tear()
        failed = names[len(self._marks) - 1]
        error.add_note(
            f"mpcore: optimizer {failed!r} failed inside its step, when {moved} of {total} "
            "parameters or their slots may have moved, which cannot be put back; the others, the "
            "buffers and the loss scale are those before the step. Load a checkpoint, or call "
            "`amp.abort_step()` to go on with the weights as they are"
        )


class _Mark:
    """What an optimizer holds before its step: references and counts of writes, no copies.

    Attributes:
        size: its parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at it; about 0.3 us a parameter with three slots."""
        self._optimizer = optimizer
        self._groups, self._state = optimizer.param_groups, optimizer.state
        self._lists: list[list[nn.Parameter]] = [group["params"] for group in self._groups]
        self._versions = [list(map(_VERSION, params)) for params in self._lists]
        self._owners = list(self._state)
        self._slots = [_values(slots) for slots in self._state.values()]
        flat = chain.from_iterable(self._slots)
        try:
            self._seen = list(map(_VERSION, flat))
        except AttributeError:  # a number: it tells by itself
            self._seen = [_version(value) for value in chain.from_iterable(self._slots)]

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(map(len, self._lists))

    def put_back(self, error: BaseException, kept: set[nn.Parameter]) -> int:
        """Put back what did not move, and return how many parameters may have moved.

        Args:
            error: what its step raised.
            kept: parameters whose values are those before, whatever was written into them.
        """
        optimizer = self._optimizer
        optimizer.param_groups = self._groups
        if optimizer.state is not self._state:
            optimizer.state = self._state
        for group, params in zip(self._groups, self._lists, strict=True):
            group["params"] = params
        # A fused kernel that fails halfway has written without counting it.
        uncertain = _in_kernel(error)
        before = self._slots_before()
        moved = 0
        for params, versions in zip(self._lists, self._versions, strict=True):
            for param, version in zip(params, versions, strict=True):
                stays = param in kept or param._version == version
                countable = type(param) in _PLAIN and not (uncertain and param.grad is not None)
                if stays and countable and self._put_back_slots(param, before.get(param)):
                    continue
                moved += 1
        return moved

    def _slots_before(self) -> dict[Any, list[tuple[Any, Any]]]:
        """Return (value, count of writes) of each slot, by its parameter."""
        seen = iter(self._seen)
        return {
            owner: [(value, next(seen)) for value in values]
            for owner, values in zip(self._owners, self._slots, strict=True)
        }

    def _put_back_slots(self, param: nn.Parameter, before: list[tuple[Any, Any]] | None) -> bool:
        """Put the slots of an unmoved parameter back, if they have not moved."""
        if before is None:  # all of them are new
            self._state.pop(param, None)
            return True
        for value, seen in before:
            if isinstance(value, torch.Tensor) and (
                type(value) not in _PLAIN or value._version != seen
            ):
                return False
        now: State = self._state[param]
        if not isinstance(now, dict):
            return True  # what no slots are was not looked into
        names = list(now)
        if len(names) < len(before):
            return False
        for name in names[len(before) :]:
            del now[name]
        now.update((name, value) for name, (value, _) in zip(names, before, strict=False))
        return True


def _values(slots: Any) -> tuple[Any, ...]:
    return tuple(slots.values()) if isinstance(slots, dict) else ()


def _version(value: Any) -> Any:
    return value._version if isinstance(value, torch.Tensor) else value


def _in_kernel(error: BaseException) -> bool:
    """Return whether ``error`` may come out of a kernel that writes several tensors."""
    trace = error.__traceback__
    if trace is None:
        return True
    while trace.tb_next is not None:
        trace = trace.tb_next
    names: Sequence[str] = trace.tb_frame.f_code.co_names
    return any(name.startswith(("_foreach_", "_fused_")) for name in names)
