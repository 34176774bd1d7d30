"""Ctrl-C held back for the few milliseconds in which a step moves the weights.

``with Held():`` keeps SIGINT until its block has ended, and then calls the handler that was there:
KeyboardInterrupt comes out of the ``with`` statement, with the block complete.

Not covered: SIGKILL, and SIGTERM without a handler, end the process at once; so does a power cut.
Exceptions that other handlers raise (SIGALRM, a handler of SIGTERM), and those that another thread
puts into this one (``PyThreadState_SetAsyncExc``), are not held.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Held", "raise_late"]

_PATIENCE = 1.0  # seconds

# The functions behind the public ones, which look for an enum by way of an exception: 13 us less
# a block, measured with Python 3.11.7.
_plain = getattr(signal, "_signal", signal)
_get: Callable[[int], Any] = _plain.getsignal
_set: Callable[[int, Any], Any] = _plain.signal
_SIGINT = int(signal.SIGINT)
_ident = threading.get_ident
_MAIN = [threading.main_thread().ident]  # looked up once: each step asks


def _forked() -> None:
    _MAIN[0] = _ident()  # whichever thread forks is the only one of the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Held:
    """A block of the main thread that SIGINT does not interrupt.

    Blocks nest: the outermost delivers. Elsewhere than in the main thread of the main
    interpreter, and where SIGINT is ignored, kills the process or is not Python's, nothing
    changes: no handler of Python's could interrupt the block there. A handler of the user's is
    called as Python would call it, only later; what a C library has put under Python's back
    (``faulthandler.register``, say) is called at once, and stays.

    A block that hangs can still be left: the second SIGINT that comes a second or more after the
    first is delivered at once.

    Cost: about 3 us.
    """

    __slots__ = ("_action", "_active", "_handler", "_later", "_since")

    def __init__(self, *, later: bool = False) -> None:
        """Hold nothing yet.

        Args:
            later: hold from ``now`` on, not from the beginning of the block; it may be entered
                again and again.
        """
        self._later, self._active = later, False
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._since: float | None = None
        self._action: bytes | None = None

    def __enter__(self) -> None:
        """Hold SIGINT from here on, unless ``later``."""
        if not self._later:
            self.now()

    def now(self) -> None:
        """Hold SIGINT from here on."""
        if _ident() != _MAIN[0]:
            return
        handler = _get(_SIGINT)
        if handler is self:  # left behind by a fault at its end: this end takes it away
            self._active = True
            return
        if not callable(handler) or (isinstance(handler, Held) and handler._active):
            return
        self._handler, self._active, self._since = handler, True, None
        try:
            self._action = None if _ACTION is None else _ACTION.foreign()
            _set(_SIGINT, self)
            if self._action is not None and _ACTION is not None:
                _ACTION.put(self._action)
        except ValueError:  # the main thread of another interpreter than the main one
            self._active = False
        except BaseException:
            self._give_back()
            raise

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note a SIGINT; see ``signal.signal``."""
        now = time.monotonic()
        if self._active and (self._since is None or now - self._since < _PATIENCE):
            self._since = now if self._since is None else self._since
            return
        # It hangs; or it is over, and somebody who found it as the handler has put it back.
        self._since = None
        if self._handler is not None:
            self._handler(number, frame)

    def __exit__(self, *exc: object) -> None:
        """Deliver what came."""
        try:
            handler = self._give_back() if self._active else None
        except BaseException:  # a fault in the middle of it: the rest
            self._give_back()
            raise
        if self._since is not None and callable(handler):
            self._since = None
            handler(_SIGINT, sys._getframe(1))

    def _give_back(self) -> Any:
        """Let SIGINT be handled as before the block, or as the block has wanted it; return how."""
        handler = _get(_SIGINT)
        if handler is self:  # else the block has put one there that is to stay
            handler = self._handler
            _set(_SIGINT, handler)
            if self._action is not None and _ACTION is not None:
                _ACTION.put(self._action)
        self._active = False
        return handler


def raise_late(late: list[BaseException]) -> NoReturn:
    """Raise the first fault that came too late to stop a step."""
    first, *others = late
    first.add_note(
        "mpcore: the step was complete but for this: weights, optimizers, buffers and loss scale "
        "are those after it, and every other call of `after_step` was made"
    )
    for other in others:
        first.add_note(f"mpcore: after that, {other!r}")
    raise first


class _Action:
    """What the system calls at a SIGINT: Python's own entry, or some C library's.

    ``signal.signal`` sets it as well, so that a foreign one has to be put back.
    """

    def __init__(self) -> None:
        """Find ``sigaction``; AttributeError where there is none."""
        # Of this process, and with the interpreter's lock held, since it is over in no time.
        self._call = ctypes.PyDLL(None).sigaction
        self._now = ctypes.create_string_buffer(256)  # more than the structure takes anywhere
        self._where = ctypes.byref(self._now)
        # The address to call comes first in it, in Linux and in macOS.
        self._address = ctypes.c_void_p.from_buffer(self._now)
        self._python: int | None = None

    def foreign(self) -> bytes | None:
        """Return what is there, if it is not what ``signal.signal`` sets."""
        self._call(_SIGINT, None, self._where)
        if self._address.value == self._python:
            return None
        found = self._now.raw
        if self._python is None:  # the first time: let Python set its own, and look at it
            _set(_SIGINT, _get(_SIGINT))
            self._call(_SIGINT, None, self._where)
            self._python, address = self._address.value, ctypes.c_void_p.from_buffer_copy(found)
            self.put(found)
            return found if address.value != self._python else None
        return found

    def put(self, action: bytes) -> None:
        """Let the system do ``action``."""
        self._now.raw = action
        self._call(_SIGINT, self._where, None)


def _find_action() -> _Action | None:
    try:
        return _Action()
    except (OSError, AttributeError, TypeError):  # Windows has none
        return None


_ACTION = _find_action()
