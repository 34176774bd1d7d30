"""One batch through a torch model, forward and backward as a step does, and what it does told.

Everything is put back; what happens is heard by the ``Tap`` of ``mpcore_torch.tap``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from mpcore.errors import BackendError
from mpcore.tools.inspection.dtypes import Dtypes
from mpcore.tools.inspection.recorder import (
    BACKWARD,
    FORWARD,
    Outcome,
)
from mpcore_torch.layers import device_of, parameter_names
from mpcore_torch.snapshot import left_alone
from mpcore_torch.tap import OPS, Tap, _Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.amp.amp import Amp
    from mpcore.tools.inspection.recorder import Calls

__all__ = ["OPS", "one_number", "record", "run"]


def record(
    model: nn.Module,
    amp: Amp | None,
    batch: tuple[Any, ...],
    loss_fn: Any,
    scale: float,
    calls: Calls[Any, Any],
) -> Outcome:
    """Run one batch and tell what happens; see ``mpcore.tools.inspection.recorder.Recorder``."""
    if amp is not None:
        amp.transaction.calls.check("step")  # type: ignore[attr-defined]  # refuses while gradients wait
    batch = tuple(_as_tensor(x, model) for x in batch)
    how = f"one batch on {device_of(model)}, every kernel, below autocast"
    if calls.values:
        how = "one batch, eagerly; layers by hooks, ops as kernels of aten"
    with left_alone(model, amp):
        region: Any = contextlib.nullcontext() if amp is None else amp.autocast()  # type: ignore[attr-defined]
        return run(model, region, batch, _losses(model, amp, loss_fn), scale, calls, how)


def run(
    model: nn.Module,
    region: Any,
    batch: tuple[Any, ...],
    losses: list[tuple[Callable[..., Any] | None, list[nn.Parameter]]],
    scale: float,
    calls: Calls[Any, Any],
    how: str,
) -> Outcome:
    """Run losses on a batch, forward and backward, and tell what happens.

    Args:
        model: the model that they call.
        region: context of the forward passes.
        batch: tensors.
        losses: functions, each with what it is differentiated for; None stands for the model
            itself, and the mean of its floats.
        scale: of the backward pass.
        calls: what is told.
        how: told in the outcome.
    """
    tap, backward = Tap(model, calls), calls.request.backward
    values: list[torch.Tensor] = []
    grads: dict[nn.Parameter, torch.Tensor] = {}
    with tap.open():
        # The region first: modes that it brings along cast before ours would hear it.
        with region, torch.set_grad_enabled(backward):
            for function, _ in losses:
                with tap.running(FORWARD):
                    result = (function or model)(*batch)
                if backward or calls.values:
                    values.append(one_number(result, mean=function is None))
        for index, loss in enumerate(values if backward else []):
            kept = index < len(values) - 1  # losses may share a forward pass
            scaled, params = loss.float().sum() * scale, losses[index][1]
            with tap.running(BACKWARD):
                # It writes no `.grad` and wakes no optimizer.
                found = torch.autograd.grad(scaled, params, retain_graph=kept, allow_unused=True)
            _add(grads, params, found)
            if not calls.values and all(grad is None for grad in found):
                msg = (
                    "`loss_fn` must depend on the parameters of the model, or hides them in "
                    "reentrant checkpointing: pass use_reentrant=False to torch.utils.checkpoint"
                )
                raise BackendError(msg)
    if isinstance(calls, Dtypes):
        tap.tell_backward(calls)
    names = {param: name for param, name in parameter_names(model).items() if param.requires_grad}
    return Outcome(
        float(sum(loss.detach().float().sum() for loss in values)),
        {f"batch[{i}]": _Seen(x, []) for i, x in enumerate(batch) if isinstance(x, torch.Tensor)},
        {name: _Seen(grads[p], []).summary() if p in grads else None for p, name in names.items()}
        if backward and calls.values
        else {},
        how,
    )


def _add(
    sums: dict[nn.Parameter, torch.Tensor], params: list[nn.Parameter], found: Sequence[Any]
) -> None:
    for param, grad in zip(params, found, strict=True):
        if grad is not None:
            sums[param] = grad if param not in sums else sums[param] + grad


def _losses(
    model: nn.Module, amp: Any, loss_fn: Any
) -> list[tuple[Callable[..., Any] | None, list[nn.Parameter]]]:
    """Return every loss function, and the parameters that a step differentiates it for."""
    functions = list(loss_fn.values()) if isinstance(loss_fn, dict) else [loss_fn]
    owned = [list(model.parameters())] * len(functions)
    if amp is not None and isinstance(loss_fn, dict):
        owned = [amp.transaction.parameters_of(amp.optimizers[name]) for name in loss_fn]
    return [
        (function, [param for param in params if param.requires_grad])
        for function, params in zip(functions, owned, strict=True)
    ]


def _as_tensor(value: Any, model: nn.Module) -> Any:
    """Return a numpy array as a tensor where the model is, float64 as float32."""
    if not isinstance(value, np.ndarray):
        return value
    dtype = np.float32 if value.dtype == np.float64 else value.dtype
    return torch.from_numpy(np.array(value, dtype)).to(device_of(model))


def one_number(result: Any, *, mean: bool) -> torch.Tensor:
    """Return a loss: what a loss function returned, or the mean of a model's floats.

    Raises:
        BackendError: it is no number that can be differentiated, where that is wanted.
    """
    loss = _mean(result) if mean else result
    wanted = torch.is_grad_enabled()
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or wanted > loss.requires_grad:
        msg = f"`loss_fn` must return one number that can be differentiated, got {loss!r:.80}"
        raise BackendError(msg)
    return loss


def _mean(output: Any) -> torch.Tensor:
    floats = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
    floats = [
        t
        for t in floats
        if t.requires_grad or (not torch.is_grad_enabled() and t.is_floating_point())
    ]
    if not floats:
        msg = "`model` must return a float tensor that depends on its parameters; give a `loss_fn`"
        raise BackendError(msg)
    return torch.stack([tensor.float().mean() for tensor in floats]).sum()
