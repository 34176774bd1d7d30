"""The open window of a training loop: what ``backward`` gathers and ``apply`` uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from mpcore.errors import BackendError
from mpcore_torch.gradients import as_loss

if TYPE_CHECKING:
    from mpcore_torch.gradients import Grads
    from mpcore_torch.step import TorchTransaction

__all__ = ["Window"]


@dataclass
class _Losses:
    """The losses that were differentiated for the same optimizers.

    Attributes:
        loss: sum of the good ones; a bad one as long as there is no other.
        grads: sum of their scaled gradients; empty where torch adds them up.
        number: how many there were.
        good: how many of them were kept.
        bad: gradients of a bad one that was the only one.
    """

    loss: Any = 0.0
    grads: Grads = field(default_factory=dict)
    number: int = 0
    good: float = 0.0
    bad: Grads | None = None


class Window:
    """One open step of a loop that calls ``backward`` itself.

    Float32 gradients of losses for the same optimizers are left to torch to add up, as wrappers
    such as DDP expect; all others are added up here.
    """

    def __init__(self, transaction: TorchTransaction) -> None:
        """Gather for ``transaction``, whose step is open."""
        self._tx = transaction
        self._losses: dict[tuple[str, ...], _Losses] = {}
        self._left = 0
        _, self._before = transaction.begin()

    @property
    def names(self) -> tuple[str, ...]:
        """The optimizers that got gradients, in their own order."""
        seen = {name for names in self._losses for name in names}
        return tuple(name for name in self._tx.optimizers if name in seen)

    @property
    def number(self) -> int:
        """How often ``backward`` was called."""
        return sum(part.number for part in self._losses.values())

    @property
    def dropped(self) -> float:
        """How many of the losses were left out."""
        return self.number - sum(part.good for part in self._losses.values())

    def add(self, loss: torch.Tensor, names: tuple[str, ...], *, retain_graph: bool) -> None:
        """Take in the gradients of ``loss`` for the optimizers ``names``, after ``prepare``."""
        tx = self._tx
        part = self._losses.setdefault(names, _Losses())
        if tx.apart:
            tx.clear_grads()
        tx.backward(loss, tx.state.scale, names, retain_graph=retain_graph)
        part.number += 1
        if not tx.apart:
            part.loss, part.good = part.loss + as_loss(loss), part.good + 1.0
            self._left = self._there()
            return
        self._fold(part, as_loss(loss), tx.gradients(names))

    def _there(self) -> int:
        return sum(param.grad is not None for param in self._tx.trained(self.names))

    def check_there(self) -> None:
        """Raise BackendError if gradients that ``add`` has left were taken away since.

        ``optimizer.zero_grad()`` takes some of them, where the optimizer holds float32 values in
        the place of others.
        """
        if self._left and not self._tx.apart and self._there() < self._left:
            msg = (
                "gradients that `backward` has left must be there until `apply`, some are gone: "
                "call `zero_grad()` before `backward`, or `amp.abort_step()` to give the step up"
            )
            raise BackendError(msg)

    def prepare(self, names: tuple[str, ...]) -> None:
        """From the second loss on, or the first one for others, add up here where needed.

        Raises:
            BackendError: some gradients are not synchronised; nothing has changed.
        """
        tx = self._tx
        if tx.apart or not (tx.drops or (self._losses and self._must_part(names))):
            return
        if tx.unsynced:
            msg = (
                "these gradients are added up apart from torch's, so that DDP must synchronise "
                "each of them: leave out no_sync(), or use on_bad_micro_batch='skip', by='layer' "
                "and one loss for all optimizers"
            )
            raise BackendError(msg)
        tx.apart = True
        for others, part in self._losses.items():
            part.grads = tx.gradients(others)

    def _must_part(self, names: tuple[str, ...]) -> bool:
        return self._tx.sums_apart() or names not in self._losses

    def _fold(self, part: _Losses, loss: torch.Tensor, grads: Grads) -> None:
        tx = self._tx
        clean = True
        if tx.drops:
            clean = tx.check_part(grads, self._before)
            self._before = tx.save_buffers()
        if not part.good:
            part.bad = None if clean or part.number > 1 else grads
        sums = (part.loss, part.grads, part.good) if part.good else None
        part.loss, part.grads, part.good = tx.fold(clean, sums, loss, grads)

    def loss(self, *, mean: bool) -> Any:
        """Return what the step minimised; see ``gradients``."""
        return sum(part.loss / (_weight(part, mean=mean) or 1.0) for part in self._losses.values())

    def gradients(self, *, mean: bool) -> tuple[Grads, float, int]:
        """Return the gradients, how many losses they hold, and how many there were.

        Args:
            mean: divide by the number of losses that were kept; else the losses were divided by
                the number of all, and what was dropped is made up for.
        """
        tx, parts = self._tx, self._losses
        number, good = self.number, sum(part.good for part in parts.values())
        count = 1.0 if number == 1 else good
        if len(parts) == 1:
            ((names, part),) = parts.items()
            if part.bad is not None:
                return part.bad, 1, 1
            tx.share = _weight(part, mean=mean) / count if count else 1.0
            return part.grads if tx.apart else tx.gradients(names), good, number
        total: Grads = {}
        for part in parts.values():
            weight, grads = _weight(part, mean=mean), part.bad or part.grads
            if weight != 1.0 and part.bad is None and grads:
                factor = 1.0 / weight if weight else torch.inf
                grads = {param: grad * factor for param, grad in grads.items()}
            total = tx.add(total, grads)
        tx.share = 1.0 / count if count else 1.0
        return total, good, number


def _weight(part: _Losses, *, mean: bool) -> float:
    """Return what the sum of a part has to be divided by."""
    if part.bad is not None:
        return 1.0
    return part.good if mean else part.good / part.number
