"""The calls of one recorded step: sketches of all tensors, some of them whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from mpcore.tools.inspection.recorder import FORWARD
from mpcore.tools.inspection.summaries import Summaries
from mpcore.tools.recording.rows import Pending, summarized
from mpcore.tools.recording.sketch import taken

if TYPE_CHECKING:
    from mpcore.tools.inspection.record import LayerCall, Request
    from mpcore.tools.inspection.recorder import OpNames, RunningCall, SeenTensor
    from mpcore.tools.inspection.tensor_summary import TensorSummary

__all__ = ["Sketches"]


class Sketches(Summaries):
    """Keeps a sketch of what goes in and out of layers, whole tensors of those asked for.

    With ``whole`` bytes to spend it also keeps tensors of layers whole as long as they last, and
    a sketch of the ops inside of layers.
    """

    def __init__(self, request: Request, names: OpNames, whole: int = 0) -> None:
        """Take what ``request`` asks for, and whole tensors of so many bytes."""
        super().__init__(replace(request, ops=frozenset("*")) if whole else request, names)
        self._pending: list[Pending] = []
        self._left = whole

    def takes(self, name: str) -> bool:
        """Return whether ops are asked for, and this one runs inside of a layer."""
        inside = bool(self._stack) and self.phase == FORWARD
        return inside and bool(self.request.ops) and name not in self.names.views

    def restated(self, kept: TensorSummary, dtype: str) -> TensorSummary:
        """Return the same in another dtype, perhaps before it is summarized."""
        if not isinstance(kept, Pending):
            return super().restated(kept, dtype)
        found = Pending(kept.values, kept.shape, dtype, kept.whole)
        self._pending.append(found)
        return cast("TensorSummary", found)

    def _kept(self, tensor: SeenTensor, call: RunningCall[TensorSummary]) -> TensorSummary:
        if call.keep:
            return tensor.summary(keep=True)
        return tensor.derived(
            self._whole if call.category not in ("container", "op") else self._sketched
        )

    def _whole(self, tensor: SeenTensor) -> TensorSummary:
        if not self._left:
            return self._sketched(tensor)
        size = 4 * tensor.numbers().size
        if size > self._left:
            return self._sketched(tensor)
        self._left -= size
        return tensor.summary(keep=True)

    def _sketched(self, tensor: SeenTensor) -> TensorSummary:
        """Return what stands for the summary until the step is over."""
        found = taken(tensor.numbers(), tensor.meant_dtype() or tensor.dtype)
        self._pending.append(found)
        return cast("TensorSummary", found)

    def layer_calls(self) -> tuple[LayerCall, ...]:
        """Return all calls, every summary made."""
        made = dict(zip(map(id, self._pending), summarized(self._pending), strict=True))
        for call in self.found:
            for kept in (call.inputs, call.outputs):
                kept[:] = [made.get(id(x), x) for x in kept]
            for grads in (call.grad_inputs, call.grad_outputs):
                grads.update({n: made.get(id(x), x) for n, x in grads.items()})
        self._pending.clear()
        return super().layer_calls()
