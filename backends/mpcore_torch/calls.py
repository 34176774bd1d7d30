"""The order in which a prepared torch model may be called: one table of states and calls."""

from __future__ import annotations

from mpcore.errors import BackendError

__all__ = ["IDLE", "TABLE", "Calls", "Inference"]

IDLE = "idle"  # nothing is open
FORWARD = "forward"  # a forward pass has begun: the buffers are copied
GRADIENTS = "gradients"  # `backward` has left scaled gradients
UNSCALED = "unscaled"  # `unscale` has divided them
STEPPING = "stepping"  # inside `step` or `apply`

_NOTHING = "`{call}` must follow `backward`: there is no step to end"
_WAITING = (
    "`{call}` must not be called while the gradients of `backward` wait: call `apply` to use "
    "them first, or `abort_step` to give them up"
)
_DIVIDED = (
    "`backward` must not follow `unscale`, which has divided the gradients: call `apply` to use "
    "them first, or `abort_step` to give them up"
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
}
"""For each state and call the next state, or the error; ``step`` and ``apply`` end in idle."""


class Calls:
    """Where a prepared model is in the table.

    Attributes:
        state: a key of ``TABLE``.
    """

    def __init__(self) -> None:
        """Begin with nothing open."""
        self.state = IDLE

    def check(self, call: str) -> str:
        """Return the state after ``call``.

        Raises:
            BackendError: it is not allowed now; the message says the way out.
        """
        after = TABLE[self.state][call]
        if after not in TABLE:
            raise BackendError(after.format(call=call))
        return after

    def enter(self, call: str) -> None:
        """Make ``call``; see ``check``."""
        self.state = self.check(call)


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
