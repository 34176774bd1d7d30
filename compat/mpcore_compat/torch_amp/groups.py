"""Which optimizers step together, learnt from the order of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.weak import TensorWeakRef

from mpcore_torch.shims import merged, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StepGroups"]


class StepGroups:
    """Optimizers whose steps follow each other, no loss scaled in between, form a group.

    A scaler asks before a step whose gradients have to be judged with it. The answer is all that
    ever stepped in one group with the optimizer; before the first update, when there is none yet,
    every parameter that the losses scaled so far reach. Gradients that an optimizer has already
    stepped with, and that nothing has touched since, are nobody's business.
    """

    def __init__(self) -> None:
        self._group_of: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
        self._block: WeakSet[Any] = WeakSet()  # what has stepped since a loss was scaled
        self._closed = False  # a loss was scaled since the last step
        self._learnt = False
        self._reached: list[torch.Tensor] = []
        self._used: WeakKeyDictionary[Any, list[tuple[TensorWeakRef, int]]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # the optimizers that it knows stay here

    def scaled(self, outputs: Any) -> None:
        """A loss was scaled: what steps from here on is another group."""
        if self._block and not self._closed:
            self._closed = True
            self._reached = []
        if not self._learnt:
            self._reached += _leaves(outputs)

    def stepped(self, optimizer: Any) -> None:
        """``optimizer`` stepped, or was skipped."""
        if self._closed:
            self._block, self._closed = WeakSet(), False
        self._block.add(optimizer)
        for member in self._block:
            self._group_of.setdefault(member, WeakSet()).update(self._block)
        self._used.pop(optimizer, None)
        if len(self._group_of[optimizer]) > 1:  # one that is alone is never asked about
            for member in self._block:
                if member not in self._used:
                    self._used[member] = [(TensorWeakRef(g), g._version) for g in _grads(member)]

    def updated(self) -> None:
        """The scale was updated: the group is complete."""
        self._learnt = self._learnt or bool(self._block)
        self._block, self._closed, self._reached = WeakSet(), False, []

    def others(self, optimizer: Any, judged: set[int]) -> list[torch.Tensor]:
        """Return the gradient values to judge before ``optimizer`` moves, its own left out.

        Args:
            optimizer: what is about to step.
            judged: ids of the optimizers whose gradients were judged in this update.
        """
        if self._learnt:
            group = self._group_of.get(optimizer, ())
            waiting = [member for member in group if id(member) not in judged | {id(optimizer)}]
            grads = [g for member in waiting if not self._stale(member) for g in _grads(member)]
        else:
            done = {id(grad) for member in [*self._block, optimizer] for grad in _grads(member)}
            reached = {id(leaf): leaf.grad for leaf in self._reached}
            grads = [g for g in reached.values() if g is not None and id(g) not in done]
        with torch.no_grad():
            return [values_of(merged(grad)) for grad in grads]

    def _stale(self, optimizer: Any) -> bool:
        """Return whether ``optimizer`` has stepped with just these gradients."""
        used, grads = self._used.get(optimizer), list(_grads(optimizer))
        if used is None or len(used) != len(grads):
            return False
        pairs = zip(used, grads, strict=True)
        return all(ref() is grad and grad._version == count for (ref, count), grad in pairs)


def _grads(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                yield param.grad


def _leaves(outputs: Any) -> list[torch.Tensor]:
    """Return the leaf tensors that a backward pass from ``outputs`` would reach.

    Linear in the size of the graph. What a reentrant checkpoint hides is not seen.
    """
    if isinstance(outputs, list | tuple):
        return [leaf for output in outputs for leaf in _leaves(output)]
    if not isinstance(outputs, torch.Tensor) or outputs.grad_fn is None:
        return []
    found, seen, stack = [], {outputs.grad_fn}, [outputs.grad_fn]
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
