"""The sums over micro-batches: what of the transaction a step without them does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mpcore.step.transaction import Transaction
from mpcore_torch.gradients import any_found, check_and_unscale_, plains, summed

if TYPE_CHECKING:
    from mpcore_torch.assigned import Assigned
    from mpcore_torch.buffers import BufferGuard, Saved
    from mpcore_torch.gradients import Grads

__all__ = ["MicroBatches"]


class MicroBatches(Transaction):
    """The primitives that check and add up the gradients of micro-batches.

    Attributes:
        apart: whether each backward pass leaves its own float32 gradients, to be added up here;
            else torch adds them up in ``.grad``.
    """

    apart: bool
    _buffers: BufferGuard
    _assigned: Assigned

    def save_buffers(self) -> Saved:
        """Copy the buffers before one micro-batch."""
        return self._buffers.save(micro=True)

    def check_part(self, grads: Grads, before: Saved) -> bool:
        """Look at every element; restore the buffers unless all are finite."""
        clean = self.all_clean(grads)
        if not clean:
            self._buffers.restore(before)
            if self._buffers.written():
                self._assigned.look(lost=True)
        return clean

    def add(self, grads: Grads, others: Grads) -> Grads:
        """Return the sum; torch's backward pass has taken it already unless ``apart``."""
        return summed(grads, others) if self.apart else others

    def all_clean(self, grads: Grads) -> bool:
        """Return whether all is finite, on every rank."""
        found = check_and_unscale_(plains(grads.values()), 1.0)
        return bool(self.detector.reduce((not any_found(found),), None)[0])

    def fold(self, clean: Any, sums: Any, loss: Any, grads: Grads) -> tuple[Any, Grads, float]:
        """Begin the sums, or add a micro-batch to them if it is clean."""
        if sums is None:
            if clean:
                return loss, grads, 1.0
            return loss, {p: torch.zeros_like(g) for p, g in grads.items()}, 0.0
        total, summed, count = sums
        if clean is None:
            return total + loss, self.add(sums[1], grads), count
        if not clean:
            return total, summed, count
        return (total + loss if count else loss), self.add(sums[1], grads), count + 1.0
