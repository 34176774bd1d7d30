"""One call of a layer while a batch runs: what an inspector gathers of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError
from mpcore.tools.inspection.record import LayerCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.tools.inspection.record import Request
    from mpcore.tools.inspection.tensor_summary import Sketch

__all__ = ["LOSS", "Visit", "Visits"]

LOSS = "(loss)"
"""Path of what runs outside of the model."""


@dataclass(eq=False)
class Visit:
    """One call of one layer or op; fields as in ``LayerCall``, gradients by index.

    Attributes:
        keep: whether whole tensors are kept.
        ops: ops inside of it so far.
    """

    path: str
    type: str
    category: str
    inputs: list[Sketch]
    attributes: dict[str, Any]
    keep: bool
    outputs: list[Sketch] = field(default_factory=list)
    grad_outputs: dict[int, Sketch] = field(default_factory=dict)
    grad_inputs: dict[int, Sketch] = field(default_factory=dict)
    ops: int = 0

    def call(self) -> LayerCall:
        """Return what was seen; None for gradients that did not come."""
        return LayerCall(
            self.path,
            self.type,
            self.category,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(map(self.grad_outputs.get, range(len(self.outputs)))),
            tuple(map(self.grad_inputs.get, range(len(self.inputs)))),
            self.attributes,
        )


class Visits:
    """The calls of one forward pass, in the order in which they began.

    Attributes:
        found: all calls.
        over: whether the forward pass is over: calls are none of ours then.
    """

    def __init__(self, request: Request) -> None:
        """Record what ``request`` asks for."""
        self.request = request
        self.found: list[Visit] = []
        self.over = True
        self._stack: list[Visit] = []
        self._loss = Visit(LOSS, "", "", [], {}, request.keeps(LOSS))

    def enter(self, visit: Visit) -> None:
        """Begin a call."""
        self.found.append(visit)
        self._stack.append(visit)

    def leave(self, path: str) -> Visit | None:
        """End the latest call of the layer at ``path``, and those inside that failed."""
        while self._stack:
            visit = self._stack.pop()
            if visit.path == path:
                return visit
        return None

    def calls(self) -> tuple[LayerCall, ...]:
        """Return all calls.

        Raises:
            BackendError: no layer of the model ran where it could be seen.
        """
        if all(visit.category == "op" for visit in self.found):
            msg = (
                "`loss_fn` must call `model`, no layer of it was seen: it runs another model, or "
                "compiled code that Python does not see (ms.jit); give the function before that"
            )
            raise BackendError(msg)
        return tuple(visit.call() for visit in self.found)

    def clear(self) -> None:
        """Forget the calls that have not ended."""
        self._stack.clear()

    def op(
        self,
        name: str,
        constants: Sequence[float],
        inputs: Callable[..., list[Sketch]],
        outputs: Callable[..., list[Sketch]],
    ) -> None:
        """Take an op, if it is inside of a layer that is looked into.

        Args:
            name: of the op.
            constants: numbers in it.
            inputs: returns the sketches; told ``keep=``, whether whole tensors are kept.
            outputs: likewise.
        """
        if self.over:
            return
        visit = next((v for v in reversed(self._stack) if self.request.opens(v.path)), None)
        if visit is None and not self._stack and self.request.opens(LOSS):
            visit = self._loss
        if visit is None:
            return
        keep = self.request.keeps(visit.path)
        more = {"constants": list(constants)} if constants else {}
        path = f"{visit.path}/{visit.ops}:{name}"
        self.found.append(
            Visit(path, name, "op", inputs(keep=keep), more, keep, outputs(keep=keep))
        )
        visit.ops += 1
