"""One training step as a transaction: the acts in their order, over a framework's primitives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError, check_choice, check_count
from mpcore.scaling.transition import LossScale, transition

if TYPE_CHECKING:
    from mpcore.numerics.overflow import OverflowDetector

__all__ = ["Latest", "StepCall", "StepOptions", "Transaction"]


@dataclass(frozen=True)
class StepOptions:
    """What holds for every step of a prepared model; see ``mpcore.prepare``.

    Attributes:
        restore_on_skip: what besides the model's buffers is put back when a step is skipped.
        after_step: called without arguments after each real step, as a part of it.
        on_bad_micro_batch: ``"skip"`` or ``"drop"``.
        detector: a name of ``mpcore.numerics.overflow.DETECTORS``, or an OverflowDetector.
        sync_overflow: whether the ranks of a distributed run agree on each step.
        count_lost_updates: ``"auto"``, ``"on"`` or ``"off"``: whether lost updates are counted; an

            asks ``mpcore.step.stagnation.measures``.
    """

    restore_on_skip: tuple[Any, ...] = ()
    after_step: tuple[Any, ...] = ()
    on_bad_micro_batch: str = "skip"
    detector: Any = "auto"
    sync_overflow: bool = True
    count_lost_updates: str = "auto"

    def __post_init__(self) -> None:
        """Refuse an unknown choice, and what cannot be called."""
        check_choice(
            "count_lost_updates", self.count_lost_updates, ("auto", "on", "off"), BackendError
        )
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
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            msg = f"`clip_norm` must be finite and > 0, or None, got {self.clip_norm!r}"
            raise BackendError(msg)
        check_count("micro_batches", self.micro_batches, BackendError)


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


class Transaction:
    """The acts of one step, in order, over primitives that a framework carries out.

    Either everything moves (weights, optimizer state and count, buffers) or only the state of
    the loss scale does. The methods up to ``settle`` run as they stand in eager code, inside
    ``tf.function``, and compiled by MindSpore's graph compiler, which reads their source: so
    they hold plain calls, no branch on a tensor, and return plain tuples.

    Cost of a step beyond forward, backward and update: one pass over the gradients to unscale
    and one for their norms, linear in the number of parameters; one copy of the buffers. With
    micro-batches one float32 sum of the gradients more, and where bad ones are dropped one check
    of the gradients and one copy of the buffers for each.

    Attributes:
        rule: constants of the loss scale.
        detector: how an overflow is noticed.
        drops: whether bad micro-batches are left out instead of spoiling their step.
    """

    rule: LossScale
    detector: OverflowDetector
    drops: bool = False

    def transact(self, call: StepCall, *batch: Any) -> tuple[Any, ...]:
        """Run one step.

        Args:
            call: what holds for this step.
            batch: passed on to ``differentiate``, in parts if there are micro-batches.

        Returns:
            (loss, stepped, norms, scale, next scale, dropped, gradients).
        """
        state = self.scale_state()
        saved = self.begin()
        loss, grads, good = self.window(call, saved, state[0], *batch)
        count = call.micro_batches
        stepped, norms, next_scale, grads = self.settle(call, state, saved, grads, good, count)
        return loss, stepped, norms, state[0], next_scale, count - good, grads

    def window(self, call: StepCall, saved: Any, scale: Any, *batch: Any) -> tuple[Any, Any, Any]:
        """Return the mean loss, the summed scaled gradients, and how many parts they hold."""
        count = call.micro_batches
        if count == 1:
            loss, grads = self.differentiate(scale, *batch)
            return loss, grads, 1
        loss, grads = self.differentiate(scale, *self.part(0, count, *batch))
        if not self.drops:
            for index in range(1, count):
                more, others = self.differentiate(scale, *self.part(index, count, *batch))
                loss, grads = loss + more, self.add(grads, others)
            return loss / count, grads, count
        sound = self.sound(grads)
        self.put_back(sound, saved)
        loss, grads, good = self.first(sound, loss, grads)
        for index in range(1, count):
            before = self.look()
            more, others = self.differentiate(scale, *self.part(index, count, *batch))
            sound = self.sound(others)
            self.put_back(sound, before)
            loss, grads, good = self.fold(sound, loss, grads, good, more, others)
        return loss / self.where(good > 0, good, good + 1), grads, good

    def settle(
        self, call: StepCall, state: Any, saved: Any, grads: Any, good: Any = 1, count: int = 1
    ) -> tuple[Any, Any, Any, Any]:
        """Judge the gradients of the scaled loss, then commit or restore, then move the scale.

        Args:
            call: what holds for this step.
            state: what ``scale_state`` gave; its scale multiplied the loss.
            saved: what ``begin`` gave.
            grads: gradients of the scaled loss; may be changed in place.
            good: micro-batches that ``grads`` is the sum of; their mean is applied.
            count: micro-batches that there were.

        Returns:
            (stepped, norms, next scale, true gradients before clipping); ``stepped`` holds one
            verdict per optimizer.
        """
        quiet = self.detector.read(grads)
        grads = self.unscale(grads, state[0] if count == 1 else state[0] * good)
        norms = self.norms(grads)
        # After the division, not before: it can overflow itself when the scale is below 1,
        # and no non-finite value becomes finite by it.
        each = self.detector.reduce(self.all_finite(grads, norms), quiet)
        self.detector.clear()
        finite = each[0]
        for verdict in each[1:]:
            finite = self.both(finite, verdict)
        stepped = each
        if self.rule.skip_scope == "all":
            stepped = (finite,) * len(each)
        ready = grads if call.clip_norm is None else self.clip(grads, norms, call.clip_norm)
        done = self.commit(stepped, finite, ready, saved)
        whole = finite
        if self.drops and count > 1:
            whole = self.both(finite, good == count)
        new = transition(self.rule, state, whole, self.where, self.narrow, finite)
        next_scale = self.store(new, done)
        return stepped, norms, next_scale, grads

    # The primitives. Each is one or two calls of the framework.

    def scale_state(self) -> Any:
        """Return the fields of LossScaleState of the step that begins."""
        raise NotImplementedError

    def begin(self) -> Any:
        """Call ``detector.begin``; return what ``commit`` needs to put the buffers back."""
        raise NotImplementedError

    def differentiate(self, scale: Any, *batch: Any) -> tuple[Any, Any]:
        """Return the float32 loss and the gradients of loss times scale."""
        raise NotImplementedError

    def part(self, index: int, count: int, *batch: Any) -> tuple[Any, ...]:
        """Return the micro-batch ``index`` of ``count`` equal parts, cut along the first axis."""
        raise NotImplementedError

    def add(self, grads: Any, others: Any) -> Any:
        """Return the sum of two sets of gradients, in float32."""
        raise NotImplementedError

    def sound(self, grads: Any) -> Any:
        """Return whether no gradient of this micro-batch is inf or NaN, agreed over all ranks."""
        raise NotImplementedError

    def look(self) -> Any:
        """Return what ``put_back`` needs: the buffers before one micro-batch."""
        raise NotImplementedError

    def put_back(self, sound: Any, before: Any) -> None:
        """Make the buffers what they were ``before`` unless ``sound``."""
        raise NotImplementedError

    def first(self, sound: Any, loss: Any, grads: Any) -> tuple[Any, Any, Any]:
        """Return (loss, float32 gradients, 1) if ``sound``, else (loss, zeros, 0).

        The count is a number of the kind that the scale is.
        """
        raise NotImplementedError

    def fold(
        self, sound: Any, loss: Any, grads: Any, good: Any, more: Any, others: Any
    ) -> tuple[Any, Any, Any]:
        """Return (loss + more, grads + others, good + 1) if ``sound``, else what there was.

        While ``good`` is 0 ``loss`` is that of a bad micro-batch, and not in the sum.
        """
        raise NotImplementedError

    def unscale(self, grads: Any, scale: Any) -> Any:
        """Return the gradients in float32, divided by the scale."""
        raise NotImplementedError

    def norms(self, grads: Any) -> Any:
        """Return the L2 norm of each gradient, float32, shape (tensors,)."""
        raise NotImplementedError

    def all_finite(self, grads: Any, norms: Any) -> tuple[Any, ...]:
        """Return for each optimizer whether no gradient element is inf or NaN, exactly."""
        raise NotImplementedError

    def both(self, x: Any, y: Any) -> Any:
        """Return whether both hold; 0-d bools."""
        raise NotImplementedError

    def clip(self, grads: Any, norms: Any, clip_norm: float) -> Any:
        """Return the gradients scaled so that their total norm is at most ``clip_norm``.

        Where each optimizer is judged by itself, each by its own norm: another's may be inf.
        """
        raise NotImplementedError

    def commit(self, stepped: tuple[Any, ...], finite: Any, grads: Any, saved: Any) -> Any:
        """Run the optimizers that ``stepped`` names; return a token.

        If ``finite``, all of them run, and ``after_step`` follows. Else the buffers are put back
        first, since a bad batch has passed through them: what an optimizer moves then stays.
        """
        raise NotImplementedError

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return ``x`` where ``condition`` holds, else ``y``."""
        raise NotImplementedError

    def narrow(self, value: Any) -> Any:
        """Return a product of the scale in the scale's own format; float32 tensors have it."""
        return value

    def store(self, new: Any, done: Any) -> Any:
        """Keep the new scale state, after ``done``; return the new scale."""
        raise NotImplementedError
