"""The transaction in torch, and the prepared model that people hold."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.amp import Amp
from mpcore.errors import BackendError
from mpcore.scaling import LossScale, ScaleState, check_abort, initial_state, inverse, narrow
from mpcore.transaction import StepResult, Transaction, check_clip_norm
from mpcore_torch.apply import apply_plan, cast_floats, replace_forward, store_low
from mpcore_torch.buffers import BufferGuard
from mpcore_torch.layers import parameter_names
from mpcore_torch.masters import keep_masters, swap_in_low
from mpcore_torch.refuse import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.plan import Plan

__all__ = ["TorchAmp", "TorchTransaction"]


class TorchTransaction(Transaction):
    """The primitives of a step in torch; the order of the acts is the core's."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rule: LossScale,
        region: Callable[[], Any],
    ) -> None:
        self.model, self.optimizer, self.rule, self.region = model, optimizer, rule, region
        self.state = initial_state(rule)
        self.masters: dict[nn.Parameter, nn.Parameter] = {}
        self.used: list[nn.Parameter] = []
        self._low_of: dict[nn.Parameter, nn.Parameter] = {}
        self._buffers = BufferGuard(model)
        self._open: list[torch.Tensor | None] | None = None

    def set_masters(self, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Say which model parameter is updated through which float32 master."""
        self.masters = dict(pairs)
        self._low_of = {master: low for low, master in pairs}

    def trained(self) -> list[nn.Parameter]:
        """Return the model's parameters behind those of the optimizer, in its order."""
        low_of = self._low_of
        groups = self.optimizer.param_groups
        return [low_of.get(p, p) for group in groups for p in group["params"]]

    # The acts

    def scale_state(self) -> ScaleState:
        """Return the state as numbers on the host."""
        return self.state

    def begin(self) -> list[torch.Tensor | None]:
        """Clear old gradients and copy the buffers, once a step."""
        if self._open is None:
            for param in self.trained():
                param.grad = None
            for master in self._low_of:
                master.grad = None  # of a parameter that this step may not use
            self._open = self._buffers.save()
        return self._open

    def forward_begins(self) -> None:
        """Begin a step unless one is open or this forward pass is no part of one."""
        if self._open is None and self.model.training and torch.is_grad_enabled():
            self.begin()

    def differentiate(self, scale: float, *batch: Any) -> tuple[Any, Any]:
        """Run ``batch[0]``, the loss function, on the rest, then its backward pass."""
        loss_fn, *inputs = batch
        with self.region():
            loss = loss_fn(*inputs)
        self.backward(loss, scale)
        return loss.detach().float().reshape(()), self.gradients()

    def backward(self, loss: torch.Tensor, scale: float) -> None:
        """Add the gradients of ``loss * scale``, the product taken in float32."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            msg = f"`loss` must be a tensor with one element, got {got}"
            raise BackendError(msg)
        if not loss.requires_grad:
            msg = (
                "`loss` must depend on parameters that require gradients, got a constant; it was "
                "detached, computed under torch.no_grad(), or every parameter is frozen"
            )
            raise BackendError(msg)
        loss = loss.float().reshape(())
        (loss if scale == 1.0 else loss * scale).backward()

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients that exist, and remember whose they are."""
        self.used = [param for param in self.trained() if param.grad is not None]
        return [param.grad for param in self.used if param.grad is not None]

    def unscale(self, grads: list[torch.Tensor], scale: float) -> list[torch.Tensor]:
        """Return float32 gradients divided by ``scale``; those of float32 in place."""
        grads = [g.coalesce() if g.is_sparse else g for g in grads]
        for index, grad in enumerate(grads):
            if grad.dtype != torch.float32:
                grads[index] = grad.float()
        if scale != 1.0 and grads:
            with torch.no_grad():
                torch._foreach_mul_([_values(g) for g in grads], inverse(scale))
        return grads

    def norms(self, grads: list[torch.Tensor]) -> torch.Tensor:
        """Return the L2 norm of each gradient."""
        if not grads:
            return torch.zeros(0)
        norms = torch._foreach_norm([_values(g) for g in grads])
        return torch.stack([n.to(norms[0].device) for n in norms])

    def all_finite(self, grads: list[torch.Tensor], norms: torch.Tensor) -> bool:
        """Return whether every element of every gradient is finite, exactly."""
        # A finite norm proves every element finite; the one wait for the device is here.
        if math.isfinite(float(torch.linalg.vector_norm(norms))):
            return True
        # The norm of finite values beyond 1.8e19 overflows itself: look at those.
        suspects = [g for g, n in zip(grads, norms.tolist(), strict=True) if not math.isfinite(n)]
        return all(bool(torch.isfinite(_values(g)).all()) for g in suspects)

    def clip(
        self, grads: list[torch.Tensor], norms: torch.Tensor, clip_norm: float
    ) -> list[torch.Tensor]:
        """Return the gradients with their total norm at most ``clip_norm``."""
        total = torch.linalg.vector_norm(norms)
        # The small term is that of torch.nn.utils.clip_grad_norm_, torch 2.13.0.
        factor = (clip_norm / (total + 1e-6)).clamp(max=1.0)
        return [g * factor.to(g.device) for g in grads]

    def commit(
        self, finite: bool, grads: list[torch.Tensor], saved: list[torch.Tensor | None]
    ) -> None:
        """Let the optimizer step if ``finite``, else put the buffers back."""
        self._open = None
        if not finite:
            self._buffers.restore(saved)
            return
        for param, grad in zip(self.used, grads, strict=True):
            master = self.masters.get(param)
            if master is not None:
                master.grad = grad
            elif param.dtype == grad.dtype:
                param.grad = grad
            else:
                param.grad = grad.to(param.dtype)
        self.optimizer.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(list(self.masters), list(self.masters.values()))

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose on the host."""
        return x if condition else y

    def narrow(self, value: float) -> float:
        """Return a number in the format of the scale."""
        return narrow(self.rule, value)

    def store(self, new: Any, done: None) -> float:
        """Keep the new state; return the new scale."""
        self.state = ScaleState(*new)
        return float(self.state.scale)

    def forget(self) -> None:
        """Let the next ``begin`` start anew, whatever forward passes came before."""
        self._open = None

    def abandon(self) -> None:
        """Close a step that will not be ended; the buffers become what they were."""
        if self._open is not None:
            self._buffers.restore(self._open)
            self._open = None


def _values(grad: torch.Tensor) -> torch.Tensor:
    return grad.values() if grad.is_sparse else grad


def _to_numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


class TorchAmp(Amp):
    """A prepared torch model.

    Two ways to train, with the same result bit for bit::

        result = amp.step(loss_fn, x, y)

        with amp.autocast():
            loss = loss_fn(x, y)
        amp.backward(loss)                # as often as there are micro-batches
        result = amp.apply(clip_norm=1.0)

    A step clears the old gradients when it begins, so ``.grad`` can be read after it.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, *, simulated: bool
    ) -> None:
        super().__init__(plan, simulated=simulated)
        policy = plan.policy
        refuse(model, plan)
        apply_plan(model, plan)
        pairs = store_low(model, plan) if policy.by == "model" else []
        device = next(model.parameters()).device.type
        self._region: Callable[[], Any] = contextlib.nullcontext
        if policy.by == "op" and policy.compute != "float32":
            dtype = getattr(torch, policy.compute)
            self._region = lambda: torch.autocast(device, dtype)
        self._tx = TorchTransaction(model, optimizer, policy.scaling, self._region)
        if policy.master == "copy":
            self._tx.set_masters(pairs)
            keep_masters(model, optimizer, self._tx.masters)
        elif pairs:
            swap_in_low(optimizer, {master: low for low, master in pairs})
        self._names = parameter_names(model)
        self._last_loss: torch.Tensor | None = None
        self._watch_root(model, getattr(torch, policy.output))

    def _watch_root(self, model: nn.Module, output: torch.dtype) -> None:
        transaction, casts = self._tx, self.policy.compute != "float32"

        def make(original: Any) -> Any:
            def forward(root: nn.Module, *args: Any, **kwargs: Any) -> Any:
                # A copy of the model (an average, say) shares this method, not the step.
                if root is transaction.model:
                    transaction.forward_begins()
                result = original(root, *args, **kwargs)
                return cast_floats(result, output) if casts else result

            return forward

        replace_forward(model, make)

    @property
    def model(self) -> nn.Module:
        """The prepared model."""
        return self._tx.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; its parameters are float32 unless the policy has no masters."""
        return self._tx.optimizer

    @property
    def masters(self) -> dict[nn.Parameter, nn.Parameter]:
        """Float32 master of each 16-bit parameter of the model; empty where there are none."""
        return dict(self._tx.masters)

    @property
    def state(self) -> ScaleState:
        """State of the loss scale."""
        return self._tx.state

    @state.setter
    def state(self, state: ScaleState) -> None:
        self._tx.state = ScaleState(*state)

    def autocast(self) -> Any:
        """Return the context that a forward pass runs in; it is needed when by="op".

        It also marks where the forward pass of a step begins, for a loss that does not call
        the model itself but a method or a part of it.
        """
        self._tx.forward_begins()
        return self._region()

    def _step(
        self,
        loss_fn: Callable[..., Any],
        *batch: Any,
        clip_norm: float | None,
        keep_grads: bool,
    ) -> StepResult:
        self._tx.forget()
        self._last_loss = None
        try:
            raw = self._tx.transact(clip_norm, loss_fn, *batch)
        except BaseException:
            self._tx.abandon()
            raise
        return self._result(raw, keep_grads=keep_grads)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of ``loss`` times the scale; once per micro-batch.

        Args:
            loss: one element, any floating dtype; it is scaled in float32.
        """
        self._tx.begin()
        self._tx.backward(loss, self._tx.state.scale)
        self._last_loss = loss.detach().float().reshape(())

    def apply(self, *, clip_norm: float | None = None, keep_grads: bool = False) -> StepResult:
        """End the step that ``backward`` began: update everything, or nothing.

        Args:
            clip_norm: largest L2 norm of the true gradients, > 0, or None.
            keep_grads: put the true float32 gradients into the result.

        Raises:
            BackendError: there was no ``backward`` since the last ``apply``.
        """
        check_clip_norm(clip_norm)
        saved = self._tx._open
        loss = self._last_loss
        if saved is None or loss is None:
            msg = "`apply` must follow `backward`: there is no step to end"
            raise BackendError(msg)
        self._last_loss = None
        state = self._tx.scale_state()
        finite, norms, after, grads = self._tx.settle(state, saved, self._tx.gradients(), clip_norm)
        check_abort(self._rule, state, self._tx.state)
        return self._result((loss, finite, norms, state.scale, after, grads), keep_grads=keep_grads)

    def _result(self, raw: tuple[Any, ...], *, keep_grads: bool) -> StepResult:
        names = [self._names.get(param, "(added later)") for param in self._tx.used]
        grads = dict(zip(names, raw[5], strict=True)) if keep_grads else None
        return StepResult(raw[:5], names, _to_numpy, grads)
