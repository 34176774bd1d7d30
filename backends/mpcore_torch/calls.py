"""The order in which a prepared torch model may be called: one table of states and calls.

And what a call that a fault ends leaves behind in its thread, put back: a context manager written
in Python can be left without its end, since an interrupt is raised at the first instruction of
``__exit__`` as well. Gradients would stay switched off, and autocast on, with casts of old weights
in its cache.
"""

from __future__ import annotations

import operator
import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpcore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = [
    "GRADIENTS",
    "IDLE",
    "STEPPING",
    "TABLE",
    "TORN",
    "UNSCALED",
    "Calls",
    "Inference",
    "ThreadState",
]

IDLE = "idle"  # nothing is open
FORWARD = "forward"  # a forward pass has begun: the buffers are copied
GRADIENTS = "gradients"  # `backward` has left scaled gradients
UNSCALED = "unscaled"  # `unscale` has divided them
STEPPING = "stepping"  # inside `step` or `apply`
TORN = "torn"  # an optimizer has failed when it had moved some weights

_NOTHING = "`{call}` must follow `backward`: there is no step to end"
_WAITING = (
    "`{call}` must not be called while the gradients of `backward` wait: call `apply` to use "
    "them first, or `abort_step` to give them up"
)
_DIVIDED = (
    "`backward` must not follow `unscale`, which has divided the gradients: call `apply` to use "
    "them first, or `abort_step` to give them up"
)
_TORN = (
    "`{call}` must not follow a step that ended halfway: an optimizer failed when it had moved "
    "some weights; load a checkpoint, or call `abort_step` to go on with the weights as they are"
)
_INSIDE = "`{call}` must not be called inside a step, by its loss function or by `after_step`"

# What a user calls; ``autocast`` and a forward pass in training are ``forward``.
TABLE: dict[str, dict[str, str]] = {
    IDLE: {
        "forward": FORWARD,
        "backward": GRADIENTS,
        "unscale": _NOTHING,
        "apply": _NOTHING,
        "abort_step": IDLE,
        "step": STEPPING,
        "save": IDLE,
        "load": IDLE,
    },
    FORWARD: {
        "forward": FORWARD,
        "backward": GRADIENTS,
        "unscale": _NOTHING,
        "apply": _NOTHING,
        "abort_step": IDLE,
        "step": STEPPING,  # what ran before was no part of it
        "save": FORWARD,
        "load": FORWARD,
    },
    GRADIENTS: {
        "forward": GRADIENTS,
        "backward": GRADIENTS,
        "unscale": UNSCALED,
        "apply": STEPPING,
        "abort_step": IDLE,
        "step": _WAITING,
        "save": _WAITING,
        "load": _WAITING,
    },
    UNSCALED: {
        "forward": UNSCALED,
        "backward": _DIVIDED,
        "unscale": UNSCALED,  # nothing happens
        "apply": STEPPING,
        "abort_step": IDLE,
        "step": _WAITING,
        "save": _WAITING,
        "load": _WAITING,
    },
    STEPPING: {
        "forward": STEPPING,
        "backward": _INSIDE,
        "unscale": _INSIDE,
        "apply": _INSIDE,
        "abort_step": _INSIDE,
        "step": _INSIDE,
        "save": _INSIDE,
        "load": _INSIDE,
    },
    TORN: {
        "forward": _TORN,
        "backward": _TORN,
        "unscale": _TORN,
        "apply": _TORN,
        "abort_step": IDLE,
        "step": _TORN,
        "save": _TORN,
        "load": TORN,  # until it is over
    },
}
"""For each state and call the next state, or the error; ``step`` and ``apply`` end in idle."""


class Calls:
    """Where a prepared model is in the table.

    Attributes:
        state: a key of ``TABLE``.
    """

    def __init__(self, close: Callable[[], None] = lambda: None) -> None:
        """Begin with nothing open.

        Args:
            close: gives up what is open; called when a step turns out to have ended without it.
        """
        self.state = IDLE
        self._close = close
        self._token: object = None

    def check(self, call: str) -> str:
        """Return the state after ``call``.

        Raises:
            BackendError: it is not allowed now; the message says the way out.
        """
        if self.state == STEPPING and TABLE[STEPPING][call] not in TABLE:
            self.close_left_open()
        after = TABLE[self.state][call]
        if after not in TABLE:
            raise BackendError(after.format(call=call))
        return after

    def enter(self, call: str, token: object = None) -> None:
        """Make ``call``; see ``check``.

        Args:
            call: its name.
            token: an object of its own that the caller has in a local variable ``token``, for a
                call that is open until ``leave``.
        """
        after = self.check(call)
        self._token = token
        self.state = after

    def leave(self) -> None:
        """End what was entered."""
        if self.state != TORN:
            self.state = IDLE

    def tear(self) -> None:
        """Say that a step ended halfway."""
        self.state = TORN

    def mend(self) -> None:
        """Say that something was loaded."""
        if self.state == TORN:
            self.state = IDLE

    def close_left_open(self) -> None:
        """Give up a step that a fault has ended before it could say so."""
        if self.state == STEPPING and not self._runs():
            self._close()
            self.leave()

    def _runs(self) -> bool:
        """Return whether some thread is inside the call that was entered last."""
        if self._token is None:
            return False
        for frame in sys._current_frames().values():
            at: FrameType | None = frame
            while at is not None:
                if "token" in at.f_code.co_varnames and at.f_locals.get("token") is self._token:
                    return True
                at = at.f_back
        return False


class Inference(Calls):
    """The calls of a model that was prepared without an optimizer: no step begins."""

    def check(self, call: str) -> str:
        """Return the state after ``call``, which stays.

        Raises:
            BackendError: it belongs to training.
        """
        if call in ("forward", "abort_step", "save", "load"):
            return self.state
        msg = (
            f"`{call}` needs an optimizer, this model was prepared without one, for inference; "
            "call `release()`, then prepare(model, optimizer, policy)"
        )
        raise BackendError(msg)


class ThreadState:
    """Gradient mode, autocast, function and dispatch modes, as they are where it is made.

    Cost: about 1 us.
    """

    __slots__ = ("_kinds", "_regions", "_seen")

    def __init__(self, kinds: tuple[str, ...], *, regions: bool) -> None:
        """Look.

        Args:
            kinds: of the devices whose autocast may be switched.
            regions: whether regions of autocast are entered, so that they have to be counted.
        """
        self._kinds, self._regions = kinds, regions
        self._seen = list(map(operator.call, _looks(kinds, regions)))

    def put_back(self) -> None:
        """Let everything be as it was."""
        grad, cache, modes, dispatch, *seen = self._seen
        torch.set_grad_enabled(grad)
        while _function_modes() > modes:
            torch._C._pop_torch_function_stack()
        while _dispatch_modes() > dispatch:
            top = torch._C._get_dispatch_stack_at(_dispatch_modes() - 1)
            TorchDispatchMode.__exit__(top, None, None, None)  # its own end may do more
        if self._regions:
            before = seen.pop()
            seen.pop()
            for _ in range(_nesting() - before):
                torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(cache)
        for kind, enabled, dtype in zip(self._kinds, seen[::2], seen[1::2], strict=True):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


@cache
def _looks(kinds: tuple[str, ...], regions: bool) -> tuple[Callable[[], Any], ...]:
    """Return what tells the state of a thread, out of C wherever it can be."""
    found: list[Callable[[], Any]] = [torch.is_grad_enabled, torch.is_autocast_cache_enabled]
    found += [_function_modes, _dispatch_modes]
    for kind in kinds:
        found += [partial(torch.is_autocast_enabled, kind), partial(torch.get_autocast_dtype, kind)]
    return (*found, *(_UP_AND_DOWN if regions else ()))


# torch tells the nesting only to who changes it: two calls out of C, so that no interrupt comes
# between; the second one's result is it.
_UP_AND_DOWN = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)


def _nesting() -> int:
    return int(list(map(operator.call, _UP_AND_DOWN))[1])


def _none() -> int:
    return 0


# Private in torch, 2.13.0 included: without them, modes that are left open stay.
_function_modes = getattr(torch._C, "_len_torch_function_stack", _none)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _none)
