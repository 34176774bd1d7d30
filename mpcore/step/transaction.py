"""One training step as a transaction: the phases in their order, over a framework's primitives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError, check_choice, check_count
from mpcore.scaling.transition import LossScale, transition
from mpcore.step.clipping import clip_factor

if TYPE_CHECKING:
    from mpcore.numerics.overflow import OverflowDetector

__all__ = ["Latest", "Settlement", "StepCall", "StepOptions", "Transaction"]


@dataclass(frozen=True)
class StepOptions:
    """What holds for every step of a prepared model; see ``mpcore.prepare``.

    Attributes:
        restore_on_skip: what besides the model's buffers is put back when a step is skipped.
        after_step: called without arguments after each real step, as a part of it.
        on_bad_micro_batch: ``"skip"`` or ``"drop"``.
        detector: ``"auto"``, ``"values"``, ``"status_register"``, or an OverflowDetector.
        sync_overflow: whether the ranks of a distributed run agree on each step.
        example: what the model is called with, for by="graph"; None for nothing.
        compile: ``"never"``, ``"auto"`` or ``"always"``: whether ``step`` compiles itself.
        on_overflow: ``"skip"`` or ``"keep full"``: whether layers that keep overflowing become
            float32 for good.
        update: ``"auto"``, ``"eager"`` or ``"compiled"``: how float32 master values are moved.
        count_lost_updates: ``"auto"``, ``"on"`` or ``"off"``: whether lost updates are counted;
            ``mpcore.step.stagnation.measures`` decides for ``"auto"``.
    """

    restore_on_skip: tuple[Any, ...] = ()
    after_step: tuple[Any, ...] = ()
    on_bad_micro_batch: str = "skip"
    detector: Any = "auto"
    sync_overflow: bool = True
    count_lost_updates: str = "auto"
    example: Any = None
    compile: str = "never"
    on_overflow: str = "skip"
    update: str = "auto"

    def __post_init__(self) -> None:
        """Refuse an unknown choice, and what cannot be called."""
        check_choice("compile", self.compile, ("never", "auto", "always"), BackendError)
        check_choice("update", self.update, ("auto", "eager", "compiled"), BackendError)
        check_choice(
            "count_lost_updates", self.count_lost_updates, ("auto", "on", "off"), BackendError
        )
        check_choice("on_overflow", self.on_overflow, ("skip", "keep full"), BackendError)
        check_choice("on_bad_micro_batch", self.on_bad_micro_batch, ("skip", "drop"), BackendError)
        for entry in self.after_step:
            if not callable(entry):
                msg = f"`after_step` must hold callables, got {entry!r}; pass scheduler.step, say"
                raise BackendError(msg)


@dataclass(frozen=True)
class StepCall:
    """What holds for one step; hashable, so that it names a compiled step.

    Attributes:
        clip_norm: largest L2 norm of the true gradients, > 0, or None.
        keep_grads: whether the true float32 gradients are returned.
        micro_batches: equal parts of the batch, one after the other, >= 1.
        optimizers: names of those that take part.
    """

    clip_norm: float | None = None
    keep_grads: bool = False
    micro_batches: int = 1
    optimizers: tuple[str, ...] = field(default=("optimizer",))

    def __post_init__(self) -> None:
        """Refuse what is no norm and no count."""
        if self.clip_norm is not None and not _is_norm(self.clip_norm):
            msg = f"`clip_norm` must be finite and > 0, or None, got {self.clip_norm!r}"
            raise BackendError(msg)
        if type(self.micro_batches) is not int or self.micro_batches < 1:
            check_count("micro_batches", self.micro_batches, BackendError)


def _is_norm(value: Any) -> bool:
    try:
        return bool(0 < value < math.inf)
    except TypeError:  # no number
        return False


@dataclass(frozen=True, eq=False)
class Latest:
    """The arguments of the latest step, kept until the next one begins; see ``Amp.diagnose``.

    Attributes:
        loss_fn: the loss function.
        batch: what it was called with: references, no copies.
        call: what held for the step.
        random: the state of the generators of random numbers before it, where it can be had.
        step: its number, from 1.
    """

    loss_fn: Any
    batch: tuple[Any, ...]
    call: StepCall
    random: Any
    step: int


class Settlement(ABC):
    """The second half of a step: judge gradients, commit or restore, move the scale.

    It is all of the step that is ours where a framework's own loop makes the gradients. How a
    subclass carries out the primitives, which are the abstract methods, is its own; ``settle``
    runs as it stands in eager code, inside ``tf.function``, and compiled by MindSpore's graph
    compiler, which reads its source: so it holds plain calls, no branch on a tensor, and returns
    a plain tuple.

    Attributes:
        rule: constants of the loss scale.
        detector: how an overflow is noticed.
        has_register: whether ``detector`` reads a status register; else there is nothing to
            begin, read or clear: the values tell.
        drops: whether bad micro-batches are left out instead of letting their step be skipped.
    """

    rule: LossScale
    detector: OverflowDetector
    has_register: bool
    drops: bool = False

    def settle(
        self, call: StepCall, state: Any, saved: Any, grads: Any, clean: Any = 1, count: int = 1
    ) -> tuple[Any, Any, Any, Any]:
        """Judge the gradients of the scaled loss, then commit or restore, then move the scale.

        Args:
            call: what holds for this step.
            state: fields of the LossScaleState whose scale multiplied the loss.
            saved: what puts the buffers back; see ``commit``.
            grads: gradients of the scaled loss; may be changed in place.
            clean: micro-batches that ``grads`` is the sum of; their mean is applied.
            count: micro-batches that there were.

        Returns:
            (stepped, norms, next scale, true gradients before clipping); ``stepped`` holds one
            verdict per optimizer.
        """
        no_flag = None
        if self.has_register:
            no_flag = self.detector.read(grads)
        scale = state[0] if count == 1 else state[0] * clean
        grads, norms, each = self.unscale(grads, scale)
        # After the division, not before: it can overflow itself when the scale is below 1,
        # and no non-finite value becomes finite by it.
        each = self.detector.reduce(each, no_flag)
        if self.has_register:
            self.detector.clear()
        finite = each[0]
        for verdict in each[1:]:
            finite = finite & verdict
        stepped = each
        if self.rule.skip_scope == "all":
            stepped = (finite,) * len(each)
        ready = grads
        if call.clip_norm is not None:
            totals = self.total_norms(grads, norms)
            factors = [clip_factor(total, call.clip_norm, self.where) for total in totals]
            ready = self.multiply(grads, tuple(factors))
        all_clean = finite
        if self.drops and count > 1:
            all_clean = finite & (clean == count)
        new = transition(self.rule, state, all_clean, self.where, self.narrow, finite)
        next_scale = self.commit(stepped, finite, ready, saved, new)
        return stepped, norms, next_scale, grads

    @abstractmethod
    def unscale(self, grads: Any, scale: Any) -> tuple[Any, Any, tuple[Any, ...]]:
        """Divide gradients by the scale, in float32, and look at them.

        Returns:
            (true gradients; the L2 norm of each, float32, shape (tensors,); for each optimizer
            whether no element of its gradients is inf or NaN, exactly, as a bool or 0-d tensor
            with ``&``).
        """

    @abstractmethod
    def total_norms(self, grads: Any, norms: Any) -> tuple[Any, ...]:
        """Return the L2 norm of all gradients, float32, shape (), in a tuple.

        Where each optimizer is judged by itself (skip_scope="optimizer") there is one for each,
        in their order: another's may be inf.
        """

    @abstractmethod
    def multiply(self, grads: Any, factors: tuple[Any, ...]) -> Any:
        """Return gradients times the factor of their optimizer, or times the only one."""

    @abstractmethod
    def commit(
        self, stepped: tuple[Any, ...], finite: Any, grads: Any, saved: Any, new: Any
    ) -> Any:
        """Run the optimizers that ``stepped`` names, keep the new scale state, return its scale.

        If ``finite``, all of them run, and ``after_step`` follows. Else the buffers are put back
        first, since a bad batch has passed through them: what an optimizer moves then stays. The
        state is kept last, when nothing can fail any more.
        """

    @abstractmethod
    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return ``x`` where ``condition`` holds, else ``y``."""

    def narrow(self, value: Any) -> Any:
        """Return a product of the scale in the scale's own format; float32 tensors have it."""
        return value


class Transaction(Settlement):
    """The phases of a whole step, in order, over primitives that a framework carries out.

    Either everything moves (weights, optimizer state and count, buffers) or only the state of
    the loss scale does. What is said of ``settle`` holds for all of these methods.

    Cost of a step beyond forward, backward and update: one pass over the gradients to unscale
    and one for their norms, linear in the number of parameters; one copy of the buffers. With
    micro-batches one float32 sum of the gradients more, and where bad ones are dropped one check
    of the gradients and one copy of the buffers for each.
    """

    def transact(self, call: StepCall, *batch: Any) -> tuple[Any, ...]:
        """Run one step.

        Args:
            call: what holds for this step.
            batch: passed on to ``differentiate``.

        Returns:
            The fields of ``mpcore.step.result.StepValues``, and the true gradients: a plain
            tuple, since MindSpore's graph compiler loses dtypes in named ones.
        """
        state, saved = self.begin()
        loss, grads, clean = self.accumulate(call, saved, state[0], *batch)
        count = call.micro_batches
        stepped, norms, next_scale, grads = self.settle(call, state, saved, grads, clean, count)
        return loss, stepped, norms, state[0], next_scale, count - clean, grads

    def accumulate(
        self, call: StepCall, saved: Any, scale: Any, *batch: Any
    ) -> tuple[Any, Any, Any]:
        """Return the mean loss, the summed scaled gradients, and how many parts they hold."""
        count = call.micro_batches
        loss, grads = self.differentiate(scale, 0, count, *batch)
        if count == 1:
            return loss, grads, 1
        if not self.drops:
            sums = (loss, grads, count)
            for index in range(1, count):
                loss, grads = self.differentiate(scale, index, count, *batch)
                sums = self.fold(None, sums, loss, grads)
            return sums[0] / count, sums[1], count
        sums = self.fold(self.check_part(grads, saved), None, loss, grads)
        for index in range(1, count):
            before = self.save_buffers()
            loss, grads = self.differentiate(scale, index, count, *batch)
            sums = self.fold(self.check_part(grads, before), sums, loss, grads)
        loss, grads, clean = sums
        return loss / self.where(clean > 0, clean, clean + 1), grads, clean

    @abstractmethod
    def begin(self) -> tuple[Any, Any]:
        """Begin with the detector; return (fields of the LossScaleState, what was saved).

        What was saved is what ``commit`` needs to put the buffers back.
        """

    @abstractmethod
    def differentiate(self, scale: Any, index: int, count: int, *batch: Any) -> tuple[Any, Any]:
        """Return the float32 loss and the gradients of loss times scale for one micro-batch.

        Args:
            scale: what the float32 loss is multiplied by.
            index: which of ``count`` equal parts, cut along the first axis.
            count: how many there are; with 1 nothing is cut.
            batch: the whole batch.
        """

    @abstractmethod
    def save_buffers(self) -> Any:
        """Return what ``check_part`` needs: the buffers before one micro-batch."""

    @abstractmethod
    def check_part(self, grads: Any, before: Any) -> Any:
        """Return whether no gradient of a micro-batch is inf or NaN, agreed over all ranks.

        If one is, the buffers become what they were ``before``.
        """

    @abstractmethod
    def fold(self, clean: Any, sums: Any, loss: Any, grads: Any) -> tuple[Any, Any, Any]:
        """Return the sums with one micro-batch more, in float32, if it is ``clean``.

        Args:
            clean: what ``check_part`` gave; None where bad ones are not looked for: then the
                count stays as it is.
            sums: (loss, gradients, clean ones so far); None before the first, which gives
                zeros unless it is clean. The count is a number of the kind that the scale is.
                While it is 0 the loss is that of a bad micro-batch, and not in the sum.
            loss: of this micro-batch.
            grads: of this micro-batch.
        """
