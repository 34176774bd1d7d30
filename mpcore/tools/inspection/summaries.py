"""The calls of one batch as summaries of every tensor: what ``inspect`` makes of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore.errors import BackendError
from mpcore.tools.inspection.record import LayerCall
from mpcore.tools.inspection.recorder import FORWARD, LOSS, Calls, RunningCall
from mpcore.tools.inspection.tensor_summary import TensorSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.inspection.record import Request
    from mpcore.tools.inspection.recorder import CalledLayer, OpNames, SeenTensor

__all__ = ["Summaries"]


class Summaries(Calls[RunningCall[TensorSummary], TensorSummary]):
    """Keeps a summary of what goes in and out of layers, and of ops where that is asked for."""

    values = True

    def __init__(self, request: Request, names: OpNames) -> None:
        """Take what ``request`` asks for."""
        super().__init__(request, names)
        self._loss: RunningCall[TensorSummary] = RunningCall(LOSS, "", "", request.keeps(LOSS))

    def _begun(self, layer: CalledLayer) -> RunningCall[TensorSummary]:
        keep = self.request.keeps(layer.path)
        return RunningCall(
            layer.path, layer.type, layer.category, keep, attributes=layer.attributes()
        )

    def _kept(self, tensor: SeenTensor, call: RunningCall[TensorSummary]) -> TensorSummary:
        return tensor.summary(keep=call.keep)

    def takes(self, name: str) -> bool:
        """Return whether ops are asked for, this one changes values, and the model runs."""
        return bool(self.request.ops) and self.phase == FORWARD and name not in self.names.views

    def op(
        self,
        name: str,
        inputs: Sequence[SeenTensor],
        outputs: Sequence[SeenTensor],
        constants: Sequence[float] = (),
    ) -> None:
        """Take an op, if it is inside of a layer that is looked into."""
        opened = next((c for c in reversed(self._stack) if self.request.opens(c.path)), None)
        if opened is None and not self._stack and self.request.opens(LOSS):
            opened = self._loss
        if opened is None:
            return
        call: RunningCall[TensorSummary] = RunningCall(
            f"{opened.path}/{opened.ops}:{name}",
            name,
            "op",
            opened.keep,
            attributes={"constants": list(constants)} if constants else {},
        )
        call.inputs = [self._kept(x, call) for x in inputs]
        call.outputs = [self._kept(x, call) for x in outputs]
        self.found.append(call)
        opened.ops += 1

    def layer_calls(self) -> tuple[LayerCall, ...]:
        """Return all calls.

        Raises:
            BackendError: no layer of the model ran where it could be seen.
        """
        if all(call.category == "op" for call in self.found):
            msg = (
                "`loss_fn` must call `model`, no layer of it was seen: it runs another model, or "
                "compiled code that Python does not see (ms.jit); give the function before that"
            )
            raise BackendError(msg)
        return tuple(map(_finished, self.found))


def _finished(call: RunningCall[TensorSummary]) -> LayerCall:
    return LayerCall(
        call.path,
        call.type,
        call.category,
        tuple(call.inputs),
        tuple(call.outputs),
        tuple(map(call.grad_outputs.get, range(len(call.outputs)))),
        tuple(map(call.grad_inputs.get, range(len(call.inputs)))),
        call.attributes,
    )
