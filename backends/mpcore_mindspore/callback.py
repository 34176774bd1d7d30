"""The callback that follows a run of ``ms.Model``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore.train import Callback

from mpcore.errors import BackendError
from mpcore_mindspore.step import TrainCell

if TYPE_CHECKING:
    from collections.abc import Callable

    from mindspore.train.callback import RunContext

__all__ = ["StepCallback"]


class StepCallback(Callback):  # type: ignore[misc]  # Callback is untyped
    """Hands each step of a train cell on; made by ``MindsporeAmp.callback``."""

    def __init__(self, follow: Callable[[tuple[Any, ...], Any, int], None]) -> None:
        """Call ``follow(raw, cell, steps)`` after each step, or after each epoch of a sink."""
        super().__init__()
        self._follow = follow
        self._cell: Any = None
        self._seen = 0

    def on_train_begin(self, run_context: RunContext) -> None:
        """Find the train cell.

        Raises:
            BackendError: the model trains another network.
        """
        asked = run_context.original_args()
        found = [c for _, c in asked.train_network.cells_and_names() if isinstance(c, TrainCell)]
        if len(found) != 1:
            msg = (
                f"`callback` must follow a Model of one train cell, this one has {len(found)}; "
                "make it with ms.Model(amp.train_cell(loss_fn))"
            )
            raise BackendError(msg)
        self._cell, self._seen = found[0], int(asked.cur_step_num)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Hand the step on; with a data sink this is the last one of an epoch."""
        asked = run_context.original_args()
        steps, self._seen = int(asked.cur_step_num) - self._seen, int(asked.cur_step_num)
        if steps > 0:
            self._follow(asked.net_outputs, self._cell, steps)
