"""Modes that see what torch is asked to do, and what its kernels get."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcore.errors import PolicyError
from mpcore.numerics import ops
from mpcore.tools.inspection.trace import Call, OpCall, widest, words

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Recorder", "dtypes_of", "largest_whole", "watching"]

_MOVES = words(
    "_to_copy copy_ clone detach alias view _unsafe_view reshape _reshape_alias expand permute "
    "transpose t unsqueeze squeeze slice select split split_with_sizes unbind as_strided "
    "contiguous empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like ones "
    "ones_like full full_like new_zeros new_ones fill_ zero_ arange index_put slice_backward "
    "select_backward lift_fresh scalar_tensor bernoulli_ _local_scalar_dense eye triu tril cat "
    "masked_fill masked_fill_ new_full record_stream"
)
"""Kernels of aten that move or make values and compute nothing."""

_PRODUCTS = words(
    "mm bmm addmm addmv mv baddbmm _addmm_activation convolution convolution_overrideable "
    "convolution_backward mkldnn_convolution mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn "
    "_cudnn_rnn_backward miopen_rnn _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _bilinear "
    "_trilinear _scaled_dot_product_flash_attention_backward mkldnn_linear linear"
)
"""Kernels of aten that a layer's compute dtype is about."""

_MEETS = ("add", "add_", "sum")
"""Kernels of the backward pass in which gradients from several places are added."""

_NAMED = {"div": "truediv", "truediv": "div"}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtypes_of(value: Any) -> tuple[str, ...]:
    """Return the distinct dtypes of the float tensors in ``value``, in order of appearance."""
    found = (item for item in tree_leaves(value) if isinstance(item, torch.Tensor))
    return tuple(dict.fromkeys(_name(t.dtype) for t in found if t.is_floating_point()))


def largest_whole(value: Any) -> float:
    """Return the largest absolute value of a float32 tensor of whole numbers; else 0."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or not value.numel():
        return 0.0
    if type(value.detach()) not in (torch.Tensor, nn.Parameter):
        return 0.0  # fake and sharded ones have no values here
    values = value.detach()
    with _unwatched():
        whole = bool(((values == values.round()) & values.isfinite()).all())
        return float(values.abs().max()) if whole else 0.0


def _unwatched() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


class Kernels:
    """Dtypes of the kernels of one layer call; products count where there are any."""

    def __init__(self) -> None:
        """Have seen none."""
        self._products: dict[str, None] = {}
        self._others: dict[str, None] = {}

    def add(self, found: tuple[str, str]) -> None:
        """Take (name of the kernel, widest dtype of its floats)."""
        name, dtype = found
        (self._products if name in _PRODUCTS else self._others)[dtype] = None

    def dtypes(self) -> tuple[str, ...]:
        """Return what was seen, in order."""
        return tuple(self._products or self._others)


class Visit:
    """One call of one layer."""

    def __init__(self, path: str, module: nn.Module, given: Any, *, again: bool) -> None:
        """Begin."""
        self.path, self.again = path, again
        self.came = dtypes_of(given)
        self.went: tuple[str, ...] = ()
        self.params = dtypes_of(list(module._parameters.values()))
        self.kernels, self.grad_kernels = Kernels(), Kernels()
        self.first = self.last = torch.autograd._get_sequence_nr()
        self.grads: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self.peak = largest_whole(next(_floats(given), None))

    def call(self) -> Call:
        """Return what was seen."""
        grads = [tuple(found) for found in self.grads]
        return Call(
            self.came,
            self.params,
            self.kernels.dtypes(),
            self.went,
            grads[0],
            self.grad_kernels.dtypes(),
            grads[1],
        )


def _floats(value: Any) -> Iterator[torch.Tensor]:
    for item in tree_leaves(value):
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            yield item


class Recorder:
    """What happens in one forward and backward pass.

    Attributes:
        phase: ``"forward"`` or ``"backward"``.
        visits: layer calls, in the order they began.
        backward: (number of the node, (kernel, dtype)) of each kernel of the backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        """Begin with the forward pass; ``model`` only says which modules are containers."""
        from mpcore_torch.layers import list_layers

        self.phase = "forward"
        self.visits: list[Visit] = []
        self.backward: list[tuple[int, tuple[str, str]]] = []
        self._stack: list[Visit] = []
        self._handles: list[Any] = []
        self._containers = {e.path for e in list_layers(model) if e.category == "container"}
        self._ops: dict[OpCall, int] = {}
        self.open: Kernels | None = None  # of the op outside of layers that is running

    def enter(self, path: str, module: nn.Module, given: Any) -> None:
        """A layer is called."""
        visit = Visit(path, module, given, again=self.phase == "backward")
        self.visits.append(visit)
        self._stack.append(visit)
        for tensor in _floats(given):
            self._on_gradient(tensor, visit.grads[1])

    def leave(self, path: str, output: Any) -> None:
        """It has returned, or raised."""
        while self._stack:
            visit = self._stack.pop()
            visit.last = torch.autograd._get_sequence_nr()
            if visit.path == path:
                visit.went = dtypes_of(output)
                for tensor in _floats(output):
                    self._on_gradient(tensor, visit.grads[0])
                return

    def _on_gradient(self, tensor: torch.Tensor, into: dict[str, None]) -> None:
        if tensor.requires_grad:

            def hook(grad: torch.Tensor) -> None:
                into[_name(grad.dtype)] = None

            self._handles.append(tensor.register_hook(hook))

    def forget(self) -> None:
        """Take the hooks off that tensors of the user may have got."""
        for handle in self._handles:
            handle.remove()

    def kernel(self, name: str, given: Any, result: Any) -> None:
        """A kernel has run."""
        dtypes = dtypes_of(given)
        if not dtypes or name in _MOVES:
            return
        # A product's operands are of one dtype; what is saved beside them (sums of attention) not.
        # Some take 16 bits and return the float32 that they compute in (softmax, sum on CUDA).
        found = dtypes[0] if name in _PRODUCTS else widest((*dtypes, *dtypes_of(result)[:1]))
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        if node is not None and name in _MEETS and not self._stack:
            return
        if self._stack:
            self._stack[-1].kernels.add((name, found))
            if self.open is not None:
                self.open.add((name, found))
        elif node is not None:
            self.backward.append((node._sequence_nr(), (name, found)))
        elif self.open is not None:
            self.open.add((name, found))

    @property
    def outside(self) -> str | None:
        """Path of the container that runs, ``"(loss)"`` for none, None inside a layer."""
        if not self._stack:
            return "(loss)" if self.phase == "forward" else None
        path = self._stack[-1].path
        return path if path in self._containers and self.phase == "forward" else None

    def op(self, call: OpCall) -> None:
        """An op outside of layers has run."""
        self._ops[call] = self._ops.get(call, 0) + 1

    def op_calls(self) -> tuple[OpCall, ...]:
        """Return the ops outside of layers, each once with its count."""
        return tuple(replace(call, count=count) for call, count in self._ops.items())


class _Dispatch(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        home, _, name = func._schema.name.partition("::")
        result = func(*args, **(kwargs or {}))
        if home != "prim":  # questions, such as for the device
            self._recorder.kernel(name, (args, kwargs), result)
        return result


class _Functions(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, recorder = kwargs or {}, self._recorder
        path = recorder.outside
        came = dtypes_of((args, kwargs)) if path is not None else ()
        if not came or path is None or recorder.open is not None:
            return func(*args, **kwargs)
        kernels = recorder.open = Kernels()
        try:
            result = func(*args, **kwargs)
        finally:
            recorder.open = None
        name = str(resolve_name(func) or getattr(func, "__name__", func))
        found = kernels.dtypes()
        if found:
            recorder.op(OpCall(path, _short(name), _neutral(name), came, found, dtypes_of(result)))
        return result


def _short(name: str) -> str:
    return name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")


@cache
def _neutral(name: str) -> str:
    home, _, last = name.rpartition(".")
    plain = last.strip("_")
    spellings = [name]
    if last != plain:
        base = _NAMED.get(plain, plain)
        spellings += [f"{home}.{n}" for n in (plain, base, plain[1:])]
    for spelling in spellings:
        try:
            return ops.find("torch", spelling).name
        except PolicyError:
            continue  # another spelling, or the table has no such op
    return ""


@contextlib.contextmanager
def watching(recorder: Recorder) -> Iterator[None]:
    """Record every function and kernel of this thread, and of its backward passes."""
    with _Functions(recorder), _Dispatch(recorder):
        yield
