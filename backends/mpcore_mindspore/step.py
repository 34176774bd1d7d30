"""The transaction as a Cell."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import ParameterTuple, Tensor, nn, ops

from mpcore.errors import BackendError
from mpcore.step.micro_batches import uneven
from mpcore.step.transaction import StepCall, Transaction
from mpcore_mindspore.guard import Given, Reaches, check_alone, guarded, undisturbed
from mpcore_mindspore.journal import Begin, End, Followed, Journal, mend
from mpcore_mindspore.master_weights import check_mode
from mpcore_mindspore.overflow import on_all_ranks
from mpcore_mindspore.reaching import decayed
from mpcore_mindspore.stagnation import lost_and_moving, new_counts, samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_mindspore.ascend import EmulatedAscend
    from mpcore_mindspore.bindings import Bindings, Detection, OptimizerBinding

__all__ = ["NO_SCALAR", "TrainCell"]


def _rounded(value: ms.Tensor) -> Any:
    return value.astype(ms.bfloat16).astype(ms.float32)


def _unscaled(inverse: ms.Tensor, grad: ms.Tensor) -> Any:
    return grad.astype(ms.float32) * inverse


def _times(factor: ms.Tensor, grad: ms.Tensor) -> Any:
    return grad * factor


def _finite(grad: ms.Tensor) -> Any:
    return ops.isfinite(grad).all()


def _norm(grad: ms.Tensor) -> Any:
    return ops.sqrt((grad * grad).sum())


def _total(norms: ms.Tensor) -> Any:
    return ops.sqrt((norms * norms).sum())


def _add(grad: ms.Tensor, other: ms.Tensor) -> Any:
    return grad.astype(ms.float32) + other.astype(ms.float32)


def _first(clean: ms.Tensor, grad: ms.Tensor) -> Any:
    grad = grad.astype(ms.float32)
    return ops.where(clean, grad, ops.zeros_like(grad))


def _fold(clean: ms.Tensor, grad: ms.Tensor, other: ms.Tensor) -> Any:
    return ops.where(clean, _add(grad, other), grad)


def _compiled(cell: TrainCell) -> Callable[..., Any]:
    def run(*batch: Any) -> Any:
        return cell(*batch)

    return ms.jit(run, fullgraph=True)  # type: ignore[no-any-return]


NO_SCALAR = "`loss_fn` must return a scalar: average it"


def _scaled(loss_fn: Callable[..., Any], reaches: Reaches) -> Callable[..., Any]:
    given = Given()

    def scaled_loss(scale: ms.Tensor, *batch: Any) -> Any:
        loss = reaches(loss_fn(*given(*batch))).astype(ms.float32)
        if loss.size != 1:  # MindSpore would differentiate the sum
            raise ValueError(NO_SCALAR)
        return loss * scale, loss

    return scaled_loss


def _scaled_with_aux(loss_fn: Callable[..., Any], reaches: Reaches) -> Callable[..., Any]:
    given = Given()

    def scaled_loss(scale: ms.Tensor, *batch: Any) -> Any:
        values = loss_fn(*given(*batch))
        loss = reaches(values[0]).astype(ms.float32)
        if loss.size != 1:  # MindSpore would differentiate the sum
            raise ValueError("`loss_fn` must return a scalar: average it")  # noqa: EM101
        return loss * scale, (loss, values[1:])

    return scaled_loss


def _rank_reducer(params: ms.ParameterTuple) -> Any:
    # As nn.TrainOneStepCell does, mindspore 2.10.0.
    if ms.get_auto_parallel_context("parallel_mode") not in ("data_parallel", "hybrid_parallel"):
        return None
    from mindspore.communication import get_group_size

    mean = ms.get_auto_parallel_context("gradients_mean")
    return nn.DistributedGradReducer(params, mean, get_group_size())


def _check_parts(batch: tuple[Any, ...], count: int) -> None:
    for item in batch:
        if isinstance(item, Tensor) and item.ndim > 0 and item.shape[0] % count:
            raise BackendError(uneven(item.shape[0], count))


class TrainCell(Transaction, nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """One training step as a Cell: ``cell(*batch)``, under ``ms.jit`` and in GRAPH_MODE alike.

    It can also be the network of ``ms.Model(train_cell).train(...)``. Made by
    ``MindsporeAmp.train_cell``. It returns the plain tuple (loss, stepped, norms, scale, next
    scale, dropped), and the true gradients behind it if it was asked to keep them: loss, scale
    and next scale are float32, shape (); stepped is bool, shape (), or (optimizers,) if there are
    several; norms is float32, shape (parameters,); dropped is int32, shape (), or the number 0
    where no micro-batch can be dropped. Where lost updates are counted
    (``prepare(count_lost_updates=...)``) the counts come last: float32, shape (parameters, 2).
    """

    def __init__(
        self,
        bindings: Bindings,
        bound: list[OptimizerBinding],
        losses: list[Callable[..., Any]],
        call: StepCall,
        *,
        compiled: bool = False,
        has_aux: bool = False,
    ) -> None:
        """Bind a prepared network to one loss function, or one for each optimizer.

        The graph compiler reads attributes of the Cell itself, not those of our dataclasses.
        """
        nn.Cell.__init__(self, auto_prefix=False)
        self.call, self.has_aux = call, has_aux
        self.network = bindings.network
        self.after_step = bindings.after_step
        self.drops = bindings.drops
        self.check_prepared = bindings.check_prepared
        self.give_memory, self.take_memory = bindings.give_memory, bindings.take_memory
        self.held = bindings.held
        self.journal = Journal(bindings.held.now)
        counts = bindings.counter.steps if bindings.counter.moves else None
        self.opened, self.ended = Begin(self.journal, counts), End(self.journal)
        self.followed = Followed(self.journal)
        self.runs = 0
        self.run: Any = _compiled(self) if compiled else None
        self.note: Callable[[tuple[Any, ...]], None] | None = None
        self.meet: Callable[[Any], None] | None = None
        self._bind_scale(bindings)
        self._bind_saved(bound, bindings)
        self._bind_detection(bindings.detection)
        self._bind_optimizers(bound, bindings)
        self._bind_losses(bound, losses, bindings.detection.device)

    def _bind_scale(self, bindings: Bindings) -> None:
        scale = bindings.scale
        self.rule, self.scale, self.counts = scale.rule, scale.scale, scale.counts
        self.counts_skips = scale.rule.count_skipped_steps

    def _bind_saved(self, bound: list[OptimizerBinding], bindings: Bindings) -> None:
        # Pairs, not two lists of Parameters: a Cell refuses equal names in such lists.
        saved, taking_part = bindings.saved, [one.name for one in bound]
        others = [pairs for name, pairs in saved.assigned.items() if name not in taking_part]
        self.buffers = [*saved.buffers, *(pair for pairs in others for pair in pairs)]
        self.micro_batch_buffers = saved.micro_batch_buffers
        self.rounded = saved.rounded
        self.assigned = tuple(tuple(saved.assigned[name]) for name in taking_part)
        self.guarded = (*self.buffers, *(pair for pairs in self.assigned for pair in pairs))
        changing = {id(live) for live, _ in self.guarded}
        rounded = {id(live) for live, _ in self.rounded}
        self.keeps = tuple(id(live) in changing for live, _ in self.rounded)
        self.put_back_rounded = tuple(id(live) in rounded for live, _ in self.guarded)
        masters = {id(s.low): s.master for one in bound for s in one.storage.masters}
        self.reassigned = tuple(
            tuple((live, copy, masters[id(live)]) for live, copy in pairs if id(live) in masters)
            for pairs in self.assigned
        )

    def _bind_detection(self, detection: Detection) -> None:
        self.detector = detection.detector
        self.begun = detection.begun
        self.has_register = detection.detector.kind == "status_register"
        self.rank_sum: Any = detection.rank_sum
        self.agrees = detection.rank_sum is not None

    def _bind_optimizers(self, bound: list[OptimizerBinding], bindings: Bindings) -> None:
        storages = [one.storage for one in bound]
        self.refreshes = [storage.refresh for storage in storages if storage.opens]
        self.optimizers = tuple(one.mover for one in bound)
        for index, one in enumerate(bound):
            self.insert_child_to_cell(f"optimizer{index or ''}", one.optimizer)  # for checkpoints
        self.openers = tuple(storage.opener for storage in storages)
        self.closers = tuple(storage.closer for storage in storages)
        self.opens = tuple(storage.opens for storage in storages)
        self.bitwise = any(storage.bitwise for storage in storages)
        self.closes = tuple(len(storage.masters) > 0 for storage in storages)
        self.steps = bindings.counter.steps
        self.counts_steps = bindings.counter.moves
        self.measures = bindings.counts_lost
        self.samples = tuple(samples_of(one) for one in bound) if self.measures else ()
        self.lost = tuple(new_counts(n, one) for n, one in enumerate(bound))
        ends = [sum(len(one.trained) for one in bound[:n]) for n in range(len(bound) + 1)]
        self.spans = tuple(pairwise(ends))
        self.owners = tuple(n for n, one in enumerate(bound) for _ in one.trained)
        self.each_alone = self.rule.skip_scope == "optimizer" and len(bound) > 1

    def _bind_losses(
        self,
        bound: list[OptimizerBinding],
        losses: list[Callable[..., Any]],
        device: EmulatedAscend | None,
    ) -> None:
        trained = [param for one in bound for param in one.trained]
        parted = [trained] if len(losses) == 1 else [one.trained for one in bound]
        each = [decayed(one.optimizer) for one in bound]
        decays = [[flag for flags in each for flag in flags]] if len(losses) == 1 else each
        self.rounds_grad = tuple(r for one in bound for r in one.rounds_grad)
        self.any_rounds = any(self.rounds_grad)
        self.map = ops.HyperMap()
        self.reducer = _rank_reducer(ParameterTuple(trained))
        self.many_ranks = self.reducer is not None
        self.places = tuple(
            (index, place) for index, params in enumerate(parted) for place in range(len(params))
        )
        extra = [] if device is None else [device.token]
        self.grad_fns = tuple(
            ms.value_and_grad(
                (_scaled_with_aux if self.has_aux else _scaled)(loss_fn, Reaches(params, flags)),
                None,
                ParameterTuple([*params, *extra]),
                has_aux=True,
            )
            for loss_fn, params, flags in zip(losses, parted, decays, strict=True)
        )
        self.emulates = device is not None
        self.collectors: Any = ()
        if device is not None:
            tops = {id(p): top for b in bound for p, top in zip(b.trained, b.tops, strict=True)}
            self.collectors = tuple(
                device.collector(tuple(tops[id(param)] for param in params)) for params in parted
            )

    def __call__(self, *batch: Any) -> Any:
        """Run one step; an error or Ctrl-C leaves the state before it, or after it."""
        with self.held:
            return self.run_once(*batch)

    def run_once(self, *batch: Any) -> Any:
        """Run one step; from its commit on, Ctrl-C is held until ``held`` is left."""
        self.check_prepared()
        check_alone(self)
        if self.bitwise:
            check_mode()
        _check_parts(batch, self.call.micro_batches)
        if self.note is not None:
            self.note(batch)
        self.journal.clear(self.optimizers)
        whole = self.run is not None or ms.get_context("mode") == ms.GRAPH_MODE
        parts = self.call.micro_batches
        if whole and self.meet is not None:
            with guarded():
                self.meet(batch if parts == 1 else [self.rows(x, 0, parts) for x in batch])
        runs = self.runs
        # Not in what is mended: half of the copies would be those of a step before. They are made
        # again in `begin`, which a compiled step runs without coming through here.
        self.save()
        try:
            with guarded(), undisturbed():
                if not whole:
                    return nn.Cell.__call__(self, *batch)
                self.held.now()
                self.give_memory()
                run = nn.Cell.__call__ if self.run is None else type(self).call_run
                result = run(self, *batch)
                self.runs += 1
                return result
        except BaseException as fault:
            if whole:
                self.mend_run(runs)
            else:
                mend(self, fault)
            raise
        finally:
            self.take_memory()

    def compile_anew(self) -> None:
        """Forget what was compiled: the network has another plan."""
        self.compile_cache.clear()
        if self.run is not None:
            self.run = _compiled(self)

    def call_run(self, *batch: Any) -> Any:
        """Run the compiled step."""
        return self.run(*batch)

    def mend_run(self, before: int) -> None:
        """Put back what was copied, unless the graph has run to its end since ``before`` runs."""
        self.runs = self.ended.counted()
        if self.runs == before:
            self.restore()

    def parameters_and_names(self, *args: object, **kwargs: object) -> Any:
        """Yield Parameters as any Cell does; those of the optimizers hold their values."""
        for refresh in self.refreshes:
            refresh()
        return nn.Cell.parameters_and_names(self, *args, **kwargs)

    def construct(self, *batch: Any) -> Any:
        """Run the phases of the core's transaction as they stand."""
        if self.has_aux:  # one micro-batch: what `differentiate` gives as the loss comes through
            values, each, norms, scale, next_scale, dropped, _ = self.transact(self.call, *batch)
            stepped = each[0]
            if len(each) > 1:
                stepped = ops.stack(each)
            return values[0], stepped, norms, scale, next_scale, dropped, values[1]
        loss, each, norms, scale, next_scale, dropped, grads = self.transact(self.call, *batch)
        stepped = each[0]
        if len(each) > 1:
            stepped = ops.stack(each)
        if self.drops and self.call.micro_batches > 1:
            dropped = dropped.astype(ms.int32)
        if self.measures:
            lost = self.counted(next_scale)
            if self.call.keep_grads:
                return loss, stepped, norms, scale, next_scale, dropped, grads, lost
            return loss, stepped, norms, scale, next_scale, dropped, lost
        if self.call.keep_grads:
            return loss, stepped, norms, scale, next_scale, dropped, grads
        return loss, stepped, norms, scale, next_scale, dropped

    def counted(self, done: ms.Tensor) -> Any:
        """Return (lost, updates) of each parameter, after ``done``."""
        each = [ops.depend(counts.value(), done) for counts in self.lost]
        if len(each) > 1:
            return ops.cat(tuple(each), axis=0)
        return each[0] + 0.0

    def save(self) -> None:
        """Copy the buffers and the parameters that are about to be rounded."""
        for live, saved in self.guarded:
            ops.assign(saved, live)
        for live, saved in self.rounded:
            ops.assign(saved, live)

    def restore(self) -> None:
        """Put back what ``save`` copied."""
        for live, saved in self.guarded:
            ops.assign(live, saved)
        for live, saved in self.rounded:
            ops.assign(live, saved)

    # The phases

    def begin(self) -> Any:
        """Save what a step may change, then round the weights of emulated layers.

        Return the scale and the counts, each a 0-d Tensor, and what tells `check_part` that the
        copies are those of the whole step.
        """
        counts = ops.unstack(self.counts.value(), axis=0)
        state = (self.scale.value(), *counts)
        self.save()
        token = self.detector.begin()
        if self.has_register and token is not None:
            ops.assign(self.begun, token.astype(ms.float32).sum())
        for live, saved in self.rounded:
            ops.assign(live, _rounded(saved.value()))
        return state, ()

    def save_buffers(self) -> Any:
        """Copy the buffers a second time; return what tells the two copies apart."""
        for live, saved in self.micro_batch_buffers:
            ops.assign(saved, live)
        return (1,)

    def check_part(self, grads: tuple[ms.Tensor, ...], before: tuple[int, ...]) -> Any:
        """Return whether all gradients are finite, on all ranks; else assign the copies back."""
        clean = self.finite(grads)
        if self.agrees:
            clean = on_all_ranks(self.rank_sum, clean)
        # A choice, not a branch: the compiler cannot take a function that is only a branch, and
        # in eager mode nobody has to wait for `clean`.
        if len(before) > 0:
            for live, saved in self.micro_batch_buffers:
                ops.assign(live, ops.where(clean, live.value(), saved.value()))
        else:
            for place in range(len(self.guarded)):
                live, saved = self.guarded[place]
                before_it = saved.value()
                if self.put_back_rounded[place]:  # the next part is run on rounded ones still
                    before_it = _rounded(before_it)
                ops.assign(live, ops.where(clean, live.value(), before_it))
        return clean

    def differentiate(self, scale: ms.Tensor, index: int, count: int, *batch: Any) -> Any:
        """Return the float32 loss and the gradients of each loss for its own parameters.

        Of Tensors the rows of one micro-batch are taken; those without rows pass as they are.
        """
        if count > 1:
            batch = tuple([self.rows(item, index, count) for item in batch])
        if self.has_register:
            batch = tuple([self.after_begin(item) for item in batch])
        if len(self.grad_fns) == 1:
            return self.one(0, scale, *batch)
        each = [self.one(number, scale, *batch) for number in range(len(self.grad_fns))]
        loss = each[0][0]
        for pair in each[1:]:
            loss = loss + pair[0]
        return loss, tuple([each[number][1][place] for number, place in self.places])

    def after_begin(self, item: object) -> Any:
        """Return ``item``, a Tensor no earlier than the detector's begin."""
        if isinstance(item, Tensor):
            return ops.depend(item, self.begun.value())
        return item

    def one(self, index: int, scale: ms.Tensor, *batch: Any) -> Any:
        """Return one loss and its gradients, those of emulated layers rounded."""
        (_, loss), grads = self.grad_fns[index](scale, *batch)
        if self.emulates:
            grads = self.collectors[index](grads)
        if self.any_rounds:
            start = 0 if index == 0 else self.spans[index][0]
            grads = tuple(
                [
                    _rounded(grad) if self.rounds_grad[start + place] else grad
                    for place, grad in enumerate(grads)
                ]
            )
        return loss, grads

    def rows(self, item: object, index: int, count: int) -> Any:
        """Return part ``index`` of ``count`` of one item of the batch."""
        if not isinstance(item, Tensor) or item.ndim == 0:
            return item
        length = item.shape[0]
        if length % count != 0:
            # The graph compiler raises no exception of ours; `__call__` has, where it was used.
            raise ValueError("`micro_batches` must divide the batch evenly")  # noqa: EM101
        size = length // count
        return item[index * size : (index + 1) * size]

    def fold(
        self, clean: ms.Tensor, sums: Any, loss: ms.Tensor, grads: tuple[ms.Tensor, ...]
    ) -> Any:
        """Return the sums with this micro-batch if it is ``clean``, else without."""
        if clean is None:
            return sums[0] + loss, self.map(_add, sums[1], grads), sums[2]
        if sums is None:
            return loss, self.map(ops.partial(_first, clean), grads), clean.astype(ms.float32)
        total, summed, count = sums
        before = ops.where(count > 0, total, ops.zeros_like(total))
        return (
            ops.where(clean, before + loss, total),
            self.map(ops.partial(_fold, clean), summed, grads),
            count + clean.astype(ms.float32),
        )

    def unscale(self, grads: tuple[ms.Tensor, ...], scale: ms.Tensor) -> Any:
        """Divide in float32, average over the ranks; verdicts are of this rank.

        The float32 weights of emulated layers are back after it.
        """
        for place in range(len(self.rounded)):
            live, saved = self.rounded[place]
            # Not before the backward pass has read the rounded values.
            value = ops.depend(saved.value(), grads)
            if self.keeps[place]:  # what the forward pass has assigned, if it has
                now = ops.depend(live.value(), grads)
                value = ops.where(now == _rounded(value), value, now)
            ops.assign(live, value)
        grads = self.map(ops.partial(_unscaled, 1.0 / scale), grads)
        if self.many_ranks:
            grads = self.reducer(grads)
        norms = ops.stack(self.map(_norm, grads))
        return grads, norms, self.judged(grads, norms)

    def judged(self, grads: tuple[ms.Tensor, ...], norms: ms.Tensor) -> Any:
        """Return for each optimizer whether its gradients are finite.

        Finite norms prove it; else every element is looked at, as a finite one may square to inf.
        """
        clean = ops.isfinite(norms).all()
        each = tuple([clean for _ in self.spans])
        if not clean:
            each = tuple([self.finite(grads[start:stop]) for start, stop in self.spans])
        return each

    def finite(self, grads: tuple[ms.Tensor, ...]) -> Any:
        """Return whether no element of these gradients is inf or NaN."""
        return ops.stack(self.map(_finite, grads)).all()

    def total_norms(self, grads: tuple[ms.Tensor, ...], norms: ms.Tensor) -> Any:
        """Return the norm of all, or that of each optimizer that is judged alone."""
        spans = self.spans if self.each_alone else ((0, len(grads)),)
        return tuple([_total(norms[start:stop]) for start, stop in spans])

    def multiply(self, grads: tuple[ms.Tensor, ...], factors: tuple[ms.Tensor, ...]) -> Any:
        """Multiply each gradient by the factor of its optimizer, or by the only one."""
        if len(factors) == 1:
            return self.map(ops.partial(_times, factors[0]), grads)
        owned = [factors[index] for index in self.owners]
        return self.map(_times, tuple(owned), grads)

    def commit(
        self,
        stepped: tuple[ms.Tensor, ...],
        finite: ms.Tensor,
        grads: tuple[ms.Tensor, ...],
        saved: tuple[int, ...],
        new: tuple[Any, ...],
    ) -> Any:
        """Run the optimizers and what follows them, or put the buffers back; keep the state."""
        finite = self.opened(finite, stepped, grads, new)
        done = finite
        if self.each_alone:
            for index in range(len(self.optimizers)):
                if stepped[index]:
                    done = self.move(index, grads, done)
                else:
                    done = self.count_skip(index, done)
            if finite:  # noqa: SIM108  # the branches of a compiled step
                done = self.follow(done)
            else:
                done = self.undo(done)
        elif finite:
            for index in range(len(self.optimizers)):
                done = self.move(index, grads, done)
            done = self.follow(done)
        else:
            for index in range(len(self.optimizers)):
                done = self.count_skip(index, done)
            done = self.undo(done)
        if self.counts_steps:
            moved = stepped[0]
            for verdict in stepped[1:]:
                moved = ops.logical_or(moved, verdict)
            count = ops.depend(moved.astype(ms.int32).reshape((1,)), done)
            done = ops.depend(done, ops.assign_add(self.steps, count))
        scale = ops.depend(new[0], done)
        stored = (
            ops.assign(self.scale, scale),
            ops.assign(self.counts, ops.stack(new[1:])),
        )
        return self.ended(ops.depend(scale, stored))

    def move(self, index: int, grads: tuple[ms.Tensor, ...], done: ms.Tensor) -> Any:
        """Open the float32 values, run one optimizer on them, and store them again."""
        start, stop = self.spans[index]
        own = grads[start:stop]
        if self.opens[index]:
            done = self.openers[index](done, self.steps.value())
            own = tuple([ops.depend(grad, done) for grad in own])
        if len(self.reassigned[index]) > 0:
            done = self.take_assigned(index, done)
            own = tuple([ops.depend(grad, done) for grad in own])
        if self.measures:
            before = self.sampled(index, done)
            own = tuple([ops.depend(grad, before) for grad in own])
        done = ops.depend(done, self.optimizers[index](own))
        if self.closes[index]:
            done = self.closers[index](done, self.steps.value())
        if self.measures:
            done = self.count_lost(index, before, own, done)
        return done

    def take_assigned(self, index: int, done: ms.Tensor) -> Any:
        """Let float32 values follow what the forward pass has assigned to their parameters."""
        for low, before, master in self.reassigned[index]:
            now = ops.depend(low.value(), done)
            kept = ops.depend(master.value(), done)
            value = ops.where(now == before.value(), kept, now.astype(ms.float32))
            done = ops.depend(done, ops.assign(master, value))
        return done

    def sampled(self, index: int, done: ms.Tensor) -> Any:
        """Return the sampled elements of what one optimizer moves."""
        return tuple([sample(done) for sample in self.samples[index]])

    def count_lost(
        self,
        index: int,
        before: tuple[ms.Tensor, ...],
        grads: tuple[ms.Tensor, ...],
        done: ms.Tensor,
    ) -> Any:
        """Keep the counts of updates that did not change what is stored; return a token."""
        after = self.sampled(index, done)
        counts = [
            lost_and_moving(old, after[place], self.samples[index][place].elements(grads[place]))
            for place, old in enumerate(before)
        ]
        return ops.depend(done, ops.assign(self.lost[index], ops.stack(counts)))

    def count_skip(self, index: int, done: ms.Tensor) -> Any:
        """Let schedules count a skipped step, where the rule says so; no update is lost in it.

        What it moves and the forward pass has assigned is put back.
        """
        if self.measures:
            counts = self.lost[index]
            done = ops.depend(done, ops.assign(counts, ops.zeros_like(counts)))
        if self.counts_skips and self.optimizers[index].counts:
            step = self.optimizers[index].global_step
            done = ops.depend(done, ops.assign_add(step, ops.ones_like(step)))
        for live, saved in self.assigned[index]:
            done = ops.depend(done, ops.assign(live, saved))
        return done

    def follow(self, done: ms.Tensor) -> Any:
        """Call what belongs to a step that is taken."""
        for number in range(len(self.after_step)):
            self.after_step[number]()
        return self.followed(done)

    def undo(self, done: ms.Tensor) -> Any:
        """Put the buffers back."""
        for live, saved in self.buffers:
            done = ops.depend(done, ops.assign(live, saved))
        return done

    def where(self, condition: ms.Tensor, x: ms.Tensor, y: ms.Tensor) -> Any:
        """Return ``x`` where ``condition`` holds, else ``y``."""
        return ops.where(condition, x, y)
