"""Which dtypes a torch model really runs in: every kernel, by layer, forward and backward.

Two modes watch: a TorchFunctionMode sees what the model calls (``softmax``, ``@``), a
TorchDispatchMode below autocast sees what the kernels got. A kernel of the backward pass belongs
to the layer in whose forward pass the node of the graph was made that runs it: nodes are
numbered, and a layer's forward makes those between two numbers.

A compiled model is observed as it runs eagerly: the modes see nothing inside of compiled code.
Tried with torch 2.13.0.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from mpcore.errors import BackendError
from mpcore.tools.inspection.trace import Call, LayerTrace, Trace
from mpcore_torch.detect import device_of
from mpcore_torch.layers import leaves
from mpcore_torch.watch import Recorder, largest_whole, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp

__all__ = ["as_tensor", "left_alone", "loss_functions", "one_number", "run_watched", "trace"]


def trace(model: nn.Module, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any) -> Trace:
    """Run one batch forward and backward, and return what ran; see ``inspection.observe``."""
    if amp is not None:
        amp._tx.calls.check("step")  # type: ignore[attr-defined]  # refuses while gradients wait
    batch = tuple(as_tensor(x, model) for x in batch)
    how = f"one batch on {device_of(model)}, every kernel, below autocast"
    with left_alone(model, amp):
        region: Any = contextlib.nullcontext() if amp is None else amp.autocast()  # type: ignore[attr-defined]
        return run_watched(model, region, batch, loss_functions(loss_fn), how=how)


def run_watched(
    model: nn.Module,
    region: Any,
    batch: tuple[Any, ...],
    functions: list[Callable[..., Any] | None],
    *,
    backward: bool = True,
    how: str,
) -> Trace:
    """Run loss functions on a batch, forward and backward, and return what ran.

    Args:
        model: the model that they call.
        region: context of the forward passes.
        batch: tensors.
        functions: each returns a loss; None is the model itself, and the mean of its floats.
        backward: whether to differentiate.
        how: told in the trace.
    """
    recorder = Recorder(model)
    with contextlib.ExitStack() as stack:
        # Compiled code would run past the modes: it runs as it was written.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(recorder.forget)
        for handle in _hooks(model, recorder):
            stack.callback(handle.remove)
        losses = _forward(recorder, region, functions, batch, model, backward=backward)
        if backward:
            _backward(recorder, losses, model)
    return Trace(_layers(recorder), recorder.op_calls(), _whole(batch), backward=backward, how=how)


def as_tensor(value: Any, model: nn.Module) -> Any:
    """Return a numpy array as a tensor where the model is, float64 as float32."""
    if not isinstance(value, np.ndarray):
        return value
    dtype = np.float32 if value.dtype == np.float64 else value.dtype
    return torch.from_numpy(np.array(value, dtype)).to(device_of(model))


def loss_functions(loss_fn: Any) -> list[Callable[..., Any] | None]:
    """Return every loss function; None stands for the model itself."""
    if loss_fn is None:
        return [None]
    return list(loss_fn.values()) if isinstance(loss_fn, dict) else [loss_fn]


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


def _forward(
    recorder: Recorder,
    region: Any,
    functions: list[Callable[..., Any] | None],
    batch: tuple[Any, ...],
    model: nn.Module,
    *,
    backward: bool,
) -> list[torch.Tensor]:
    losses = []
    # The region first: modes that it brings along cast before ours would see it.
    with region, torch.set_grad_enabled(backward):
        for function in functions:
            with watching(recorder):
                result = (function or model)(*batch)
            if backward:
                losses.append(one_number(result, mean=function is None))
    return losses


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


def _backward(recorder: Recorder, losses: list[torch.Tensor], model: nn.Module) -> None:
    """Differentiate by ``torch.autograd.grad``: it writes no ``.grad`` and wakes no optimizer."""
    recorder.phase = "backward"
    params = [param for param in model.parameters() if param.requires_grad]
    with watching(recorder):
        for index, loss in enumerate(losses):
            # Kept for the others: losses may share a forward pass.
            kept = index < len(losses) - 1
            total = loss.float().sum()
            found = torch.autograd.grad(total, params, retain_graph=kept, allow_unused=True)
            if all(grad is None for grad in found):
                msg = (
                    "`loss_fn` must depend on the parameters of the model, or hides them in "
                    "reentrant checkpointing: pass use_reentrant=False to torch.utils.checkpoint"
                )
                raise BackendError(msg)


def _hooks(model: nn.Module, recorder: Recorder) -> Iterator[Any]:
    for path, module in leaves(model).items():
        yield module.register_forward_pre_hook(
            lambda module, args, kwargs, path=path: recorder.enter(path, module, (args, kwargs)),
            with_kwargs=True,
            prepend=True,
        )
        yield module.register_forward_hook(
            lambda module, args, output, path=path: recorder.leave(path, output), always_call=True
        )


def _layers(recorder: Recorder) -> dict[str, LayerTrace]:
    starts = [visit.first for visit in recorder.visits]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    ordered = [recorder.visits[i] for i in order]
    starts = [visit.first for visit in ordered]
    for number, found in recorder.backward:
        index = bisect_right(starts, number) - 1
        # Visits nest: of those that begin before, the first that has not ended holds the node.
        while index >= 0 and not ordered[index].first <= number < ordered[index].last:
            index -= 1
        if index >= 0:
            ordered[index].grad_kernels.add(found)
    calls: dict[str, tuple[list[Call], list[Call]]] = {}
    peaks: dict[str, float] = {}
    for visit in recorder.visits:
        calls.setdefault(visit.path, ([], []))[visit.again].append(visit.call())
        peaks[visit.path] = max(peaks.get(visit.path, 0.0), visit.peak)
    return {
        path: LayerTrace(tuple(first), tuple(again), peaks[path])
        for path, (first, again) in calls.items()
    }


def _whole(batch: tuple[Any, ...]) -> dict[str, float]:
    found = {f"batch[{i}]": largest_whole(value) for i, value in enumerate(batch)}
    return {where: peak for where, peak in found.items() if peak}


@contextlib.contextmanager
def left_alone(model: nn.Module, amp: Amp | None) -> Iterator[None]:
    """Put gradients, buffers, random generators and the step back."""
    params = list(model.parameters())
    held = [(param, param.grad) for param in params]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    devices = [device_of(model)] if device_of(model).type != "cpu" else []
    for param in params:
        param.grad = None
    try:
        with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
            yield
    finally:
        if amp is not None:
            amp.abort_step()  # type: ignore[attr-defined]
        for param, grad in held:
            param.grad = grad
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer
                if buffer is not None:
                    buffer.copy_(value)
