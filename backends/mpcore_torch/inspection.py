"""What every layer of a torch model makes of a batch, forward and backward, as sketches.

Layers are seen through hooks, their gradients through hooks on their outputs and inputs, and ops
inside of a layer below autocast and autograd, as kernels of aten. A compiled model is inspected
as it runs eagerly. Tried with torch 2.13.0.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from mpcore.errors import BackendError
from mpcore.tools.inspection import Inspection, Request, Sketch, sketch
from mpcore.tools.inspection.calls import Visit, Visits
from mpcore.tools.inspection.trace import words
from mpcore_torch.attributes import attributes
from mpcore_torch.layers import leaves, list_layers, parameter_names
from mpcore_torch.observe import as_tensor, left_alone, loss_functions, one_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.amp.amp import Amp

__all__ = ["inspect"]

_VIEWS = words(
    "detach alias view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze "
    "squeeze slice select split split_with_sizes unbind as_strided lift_fresh clone contiguous "
    "empty empty_like empty_strided new_empty new_empty_strided _local_scalar_dense"
)
"""Kernels of aten that change no value."""


def inspect(
    model: nn.Module, amp: Amp | None, batch: tuple[Any, ...], loss_fn: Any, request: Request
) -> Inspection:
    """Run one batch and return what every layer did; see ``mpcore.tools.inspection.Inspector``."""
    if amp is not None:
        amp._tx.calls.check("step")  # type: ignore[attr-defined]  # refuses while gradients wait
    scale = request.scale or (1.0 if amp is None else float(amp.scale))
    batch = tuple(as_tensor(x, model) for x in batch)
    recorder = _Recorder(model, request)
    with left_alone(model, amp), contextlib.ExitStack() as stack:
        region: Any = contextlib.nullcontext() if amp is None else amp.autocast()  # type: ignore[attr-defined]
        # Compiled code would run past the hooks: it runs as it was written.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(recorder.forget)
        for handle in _hooks(model, recorder):
            stack.callback(handle.remove)
        losses = _losses(model, amp, loss_fn)
        loss, grads = _run(model, recorder, region, batch, losses, scale)
    return Inspection(
        loss,
        scale,
        recorder.visits.calls(),
        tuple(_sketch(x) for x in batch if isinstance(x, torch.Tensor)),
        grads,
        how="one batch, eagerly; layers by hooks, ops as kernels of aten",
    )


def _losses(
    model: nn.Module, amp: Any, loss_fn: Any
) -> list[tuple[Callable[..., Any] | None, list[nn.Parameter]]]:
    """Return every loss function, and the parameters that a step differentiates it for."""
    functions = loss_functions(loss_fn)
    owned = [list(model.parameters())] * len(functions)
    if amp is not None and isinstance(loss_fn, dict):
        owned = [amp._tx._behind(amp.optimizers[name]) for name in loss_fn]
    return [
        (function, [param for param in params if param.requires_grad])
        for function, params in zip(functions, owned, strict=True)
    ]


def _run(
    model: nn.Module,
    recorder: _Recorder,
    region: Any,
    batch: tuple[Any, ...],
    losses: list[tuple[Callable[..., Any] | None, list[nn.Parameter]]],
    scale: float,
) -> tuple[float, dict[str, Sketch | None]]:
    """Run all losses forward and backward; return their sum, and the scaled gradients."""
    backward = recorder.visits.request.backward
    values = []
    with region, torch.set_grad_enabled(backward):
        for function, _ in losses:
            with recorder.kernels():
                values.append(one_number((function or model)(*batch), mean=function is None))
    total = float(sum(loss.detach().float().sum() for loss in values))
    sums: dict[nn.Parameter, torch.Tensor] = {}
    for index, loss in enumerate(values if backward else []):
        kept = index < len(values) - 1  # losses may share a forward pass
        scaled, params = loss.float().sum() * scale, losses[index][1]
        found = torch.autograd.grad(scaled, params, retain_graph=kept, allow_unused=True)
        for param, grad in zip(params, found, strict=True):
            if grad is not None:
                sums[param] = grad if param not in sums else sums[param] + grad
    names = {param: name for param, name in parameter_names(model).items() if param.requires_grad}
    grads = {name: _sketch(sums[p]) if p in sums else None for p, name in names.items()}
    return total, grads if backward else {}


class _Recorder:
    """What happens in one forward and backward pass.

    Attributes:
        visits: the calls.
    """

    def __init__(self, model: nn.Module, request: Request) -> None:
        self.visits = Visits(request)
        self._categories = {layer.path: layer.category for layer in list_layers(model)}
        self._handles: list[Any] = []
        # A tensor that one layer hands on and the next takes in is looked at once, and hooked once.
        self._sketches: dict[tuple[int, int, bool], tuple[torch.Tensor, Sketch]] = {}
        self._wanted: dict[tuple[int, int], list[tuple[dict[int, Sketch], int, bool]]] = {}

    def enter(self, path: str, module: nn.Module, given: Any) -> None:
        if self.visits.over:
            return  # activation checkpointing runs it again, in the backward pass
        given, keep = _tensors(given), self.visits.request.keeps(path)
        visit = Visit(
            path,
            type(module).__name__,
            self._categories[path],
            [self._sketch(x, keep=keep) for x in given],
            attributes(module),
            keep,
        )
        self.visits.enter(visit)
        self._follow(given, visit.grad_inputs, keep=keep)

    def leave(self, path: str, output: Any) -> None:
        visit = self.visits.leave(path)
        if visit is not None:
            went = _tensors(output)
            visit.outputs = [self._sketch(x, keep=visit.keep) for x in went]
            self._follow(went, visit.grad_outputs, keep=visit.keep)

    def _sketch(self, tensor: torch.Tensor, *, keep: bool) -> Sketch:
        key = id(tensor), tensor._version, keep  # written in place, it is another one
        if key not in self._sketches:
            self._sketches[key] = tensor, _sketch(tensor, keep=keep)
        return self._sketches[key][1]

    def _follow(self, tensors: list[torch.Tensor], into: dict[int, Sketch], *, keep: bool) -> None:
        for index, tensor in enumerate(tensors):
            if not tensor.requires_grad:
                continue
            wanted = self._wanted.setdefault((id(tensor), tensor._version), [])
            if not wanted:
                self._handles.append(tensor.register_hook(partial(_hand_out, wanted)))
            wanted.append((into, index, keep))

    def forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._sketches.clear()

    @contextlib.contextmanager
    def kernels(self) -> Iterator[None]:
        self.visits.over = False
        opened: Any = _Kernels(self) if self.visits.request.ops else contextlib.nullcontext()
        try:
            with opened:
                yield
        finally:
            self.visits.over = True
            self.visits.clear()

    def kernel(self, name: str, given: Any, result: Any, constants: list[float]) -> None:
        """A kernel has run."""
        came, went = _tensors(given), _tensors(result)
        # Beside floats, integers are places and workspaces, which nobody may have written.
        went = [x for x in went if x.is_floating_point()] or went
        self.visits.op(name, constants, *(partial(_sketches, each) for each in (came, went)))


class _Kernels(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        home, _, name = func._schema.name.partition("::")
        given = (args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if home != "prim" and name not in _VIEWS:
            constants = [x for x in tree_leaves(given) if isinstance(x, float)]
            self._recorder.kernel(name, given, result, constants)
        return result


def _hooks(model: nn.Module, recorder: _Recorder) -> Iterator[Any]:
    for path, module in leaves(model).items():
        yield module.register_forward_pre_hook(
            lambda module, args, kwargs, path=path: recorder.enter(path, module, (args, kwargs)),
            with_kwargs=True,
            prepend=True,
        )
        yield module.register_forward_hook(
            lambda module, args, output, path=path: recorder.leave(path, output), always_call=True
        )


def _hand_out(wanted: list[tuple[dict[int, Sketch], int, bool]], grad: torch.Tensor) -> None:
    found = {keep: _sketch(grad, keep=keep) for keep in {keep for _, _, keep in wanted}}
    for into, index, keep in wanted:
        into[index] = found[keep]


def _tensors(value: Any) -> list[torch.Tensor]:
    found = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
    if any(x.is_complex() for x in found):
        msg = "complex tensors cannot be inspected"
        raise BackendError(msg)
    return found


def _sketches(tensors: list[torch.Tensor], *, keep: bool) -> list[Sketch]:
    return [_sketch(x, keep=keep) for x in tensors]


def _sketch(tensor: torch.Tensor, *, keep: bool = False) -> Sketch:
    with _disable_current_modes(), torch.no_grad():
        dtype = str(tensor.dtype).removeprefix("torch.")
        values = tensor.detach().to("cpu", torch.float32, copy=keep)
        return sketch(values.numpy(), dtype, keep=keep)
