"""The transaction as a Cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor, amp, nn, ops

from mpcore.transaction import Transaction
from mpcore_mindspore.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore_mindspore.amp import Parts

__all__ = ["TrainCell"]


def _rounded(value: Any) -> Any:
    return value.astype(ms.bfloat16).astype(ms.float32)


def _unscaled(inverse: Any, grad: Any) -> Any:
    return grad.astype(ms.float32) * inverse


def _clipped(factor: Any, grad: Any) -> Any:
    return grad * factor


def _finite(grad: Any) -> Any:
    return ops.isfinite(grad).all()


def _norm(grad: Any) -> Any:
    return ops.sqrt((grad * grad).sum())


def _rank_reducer(params: Any) -> Any:
    # As nn.TrainOneStepCell does, mindspore 2.10.0; several ranks were not run.
    if ms.get_auto_parallel_context("parallel_mode") not in ("data_parallel", "hybrid_parallel"):
        return None
    from mindspore.communication import get_group_size

    mean = ms.get_auto_parallel_context("gradients_mean")
    return nn.DistributedGradReducer(params, mean, get_group_size())


class TrainCell(Transaction, nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """One training step as a Cell: ``cell(*batch)``, under ``ms.jit`` and in GRAPH_MODE alike.

    It can also be the network of ``ms.Model(train_cell).train(...)``. Made by
    ``MindsporeAmp.train_cell``. It returns the plain tuple (loss, finite, norms, scale, next
    scale), and the true gradients behind it if it was asked to keep them: loss, scale and next
    scale are float32 and finite is bool, shape (); norms is float32, shape (parameters,).

    On Ascend (not run) overflow is read with ``mindspore.amp.all_finite`` as well, once, right
    after the backward pass, since that call reads and clears the device's flag.
    """

    def __init__(
        self,
        parts: Parts,
        loss_fn: Callable[..., Any],
        clip_norm: float | None,
        *,
        keep_grads: bool,
    ) -> None:
        """Bind the parts of a prepared network to one loss function."""
        nn.Cell.__init__(self, auto_prefix=False)
        self.rule = parts.rule
        self.loss_fn = loss_fn
        self.clip_norm = clip_norm
        self.keep_grads = keep_grads
        self.network = parts.network
        self.optimizer = parts.optimizer
        self.scale, self.counts = parts.state
        # Pairs, not two lists of Parameters: a Cell refuses equal names in such lists.
        self.buffers = parts.buffers
        self.rounded = parts.rounded
        self.masters = parts.masters
        self.rounds_grad = parts.rounds_grad
        self.reads_device = parts.reads_device
        # float32: a compiled graph cannot read a bool Parameter
        self.device_finite = Parameter(
            Tensor(1.0, ms.float32), name="mpcore.device_finite", requires_grad=False
        )
        self.map = ops.HyperMap()
        self.reducer = _rank_reducer(parts.trained)
        self.many_ranks = self.reducer is not None
        self.worst_rank: Any = ops.AllReduce(ops.ReduceOp.MIN) if self.many_ranks else None
        self.grad_fn = ms.value_and_grad(self.scaled_loss, None, parts.trained, has_aux=True)

    def __call__(self, *batch: Any) -> Any:
        """Run one step; an exception leaves weights, buffers and the process as they were."""
        self.save()  # again in `begin`, which a compiled step runs without coming through here
        try:
            with guarded():
                return nn.Cell.__call__(self, *batch)
        except BaseException:
            self.restore()
            raise

    def construct(self, *batch: Any) -> Any:
        """Run the acts of the core's transaction as they stand."""
        out = self.transact(self.clip_norm, *batch)
        if self.keep_grads:
            return out
        return out[0], out[1], out[2], out[3], out[4]

    def scaled_loss(self, scale: Any, *batch: Any) -> Any:
        """Return (loss times scale, loss), both float32."""
        loss = self.loss_fn(*batch).astype(ms.float32)
        return loss * scale, loss

    def save(self) -> None:
        """Copy the buffers and the parameters that are about to be rounded."""
        for live, saved in self.buffers:
            ops.assign(saved, live)
        for live, saved in self.rounded:
            ops.assign(saved, live)

    def restore(self) -> None:
        """Put back what ``save`` copied."""
        for live, saved in self.buffers:
            ops.assign(live, saved)
        for live, saved in self.rounded:
            ops.assign(live, saved)

    # The acts

    def scale_state(self) -> Any:
        """Return the scale and the counts, each a 0-d Tensor."""
        counts = ops.unstack(self.counts.value(), axis=0)
        return (self.scale.value(), *counts)

    def begin(self) -> Any:
        """Save what a step may change, then round the weights of simulated layers."""
        self.save()
        for live, saved in self.rounded:
            ops.assign(live, _rounded(saved.value()))
        return ()

    def differentiate(self, scale: Any, *batch: Any) -> Any:
        """Return the float32 loss and the gradients; the float32 weights are back after it."""
        (_, loss), grads = self.grad_fn(scale, *batch)
        for live, saved in self.rounded:
            # Not before the backward pass has read the rounded values.
            ops.assign(live, ops.depend(saved.value(), grads))
        return loss, grads

    def unscale(self, grads: Any, scale: Any) -> Any:
        """Return float32 gradients, divided by the scale and averaged over the ranks."""
        if self.reads_device:
            ops.assign(self.device_finite, amp.all_finite(grads).astype(ms.float32))
        if self.rounded or self.masters:
            grads = tuple(
                [_rounded(g) if r else g for g, r in zip(grads, self.rounds_grad)]  # noqa: B905
            )
        grads = self.map(ops.partial(_unscaled, 1.0 / scale), grads)
        if self.many_ranks:
            grads = self.reducer(grads)
        return grads

    def norms(self, grads: Any) -> Any:
        """Return the L2 norm of each gradient, float32, shape (parameters,)."""
        return ops.stack(self.map(_norm, grads))

    def all_finite(self, grads: Any, norms: Any) -> Any:
        """Return whether no element of any gradient is inf or NaN, on all ranks."""
        finite = ops.stack(self.map(_finite, grads)).all()
        if self.reads_device:
            finite = ops.logical_and(finite, self.device_finite.value() > 0)
        if self.many_ranks:
            finite = self.worst_rank(finite.astype(ms.float32)) > 0
        return finite

    def clip(self, grads: Any, norms: Any, clip_norm: float) -> Any:
        """Return the gradients scaled so that their total norm is at most ``clip_norm``."""
        total = ops.sqrt((norms * norms).sum())
        # The small term is that of torch.nn.utils.clip_grad_norm_, torch 2.13.0.
        factor = ops.minimum(clip_norm / (total + 1e-6), ops.ones_like(total))
        return self.map(ops.partial(_clipped, factor), grads)

    def commit(self, finite: Any, grads: Any, saved: Any) -> Any:
        """Run the optimizer if ``finite``, else put the buffers back; return a token."""
        done = finite
        if finite:
            done = ops.depend(done, self.optimizer(grads))
            for low, master in self.masters:
                value = ops.depend(master.value(), done)
                done = ops.depend(done, ops.assign(low, self.lowered(low, value)))
        else:
            for live, copy in self.buffers:
                done = ops.depend(done, ops.assign(live, copy))
        return done

    def lowered(self, low: Any, value: Any) -> Any:
        """Return ``value`` as the network stores it; a simulated dtype is rounded float32."""
        if low.dtype == ms.float32:
            return _rounded(value)
        return value.astype(low.dtype)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Return ``x`` where ``condition`` holds, else ``y``."""
        return ops.where(condition, x, y)

    def store(self, new: Any, done: Any) -> Any:
        """Keep the new scale state, after ``done``; return the new scale."""
        scale = ops.depend(new[0], done)
        stored = (
            ops.assign(self.scale, scale),
            ops.assign(self.counts, ops.stack(new[1:])),
        )
        return ops.depend(scale, stored)
