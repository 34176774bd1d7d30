"""What layers, functions and kernels of a torch model do, heard: nothing else hooks its calls.

Layers are heard through hooks, tensors' gradients through hooks on them. Two modes hear the rest:
a TorchFunctionMode what the model calls (``softmax``, ``@``), a TorchDispatchMode below autocast
and autograd what the kernels of aten got. A kernel of the backward pass belongs to the layer in
whose forward pass the node of the graph was made that runs it: nodes are numbered, and a layer's
forward makes those between two numbers.

A compiled model runs as it was written: nothing is heard inside of compiled code.
Tried with torch 2.13.0.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from mpcore.errors import BackendError
from mpcore.tools.inspection.dtypes import Dtypes, floats_of
from mpcore.tools.inspection.recorder import (
    BACKWARD,
    FORWARD,
    CalledLayer,
    OpNames,
    SeenTensor,
)
from mpcore.tools.inspection.trace import OpCall, neutral_op, widest, words
from mpcore_torch.attributes import attributes
from mpcore_torch.graph_heard import hearing, in_graphs
from mpcore_torch.layers import leaves, list_layers, parameter_names
from mpcore_torch.work import multiply_adds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from mpcore.policy.layer import Layer
    from mpcore.tools.inspection.dtypes import DtypeCall
    from mpcore.tools.inspection.recorder import Calls

__all__ = ["OPS", "KernelMode", "Tap", "dtypes_of", "layer_calls"]

_PRODUCTS = words(
    "mm bmm addmm addmv mv baddbmm _addmm_activation convolution convolution_overrideable "
    "convolution_backward mkldnn_convolution mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn "
    "_cudnn_rnn_backward miopen_rnn _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _bilinear "
    "_trilinear _grouped_mm _scaled_dot_product_flash_attention_backward mkldnn_linear linear"
)
_VIEWS = words(
    "detach alias view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze "
    "squeeze slice select split split_with_sizes unbind as_strided lift_fresh clone contiguous "
    "empty empty_like empty_strided new_empty new_empty_strided _local_scalar_dense"
)
_MOVES = _VIEWS | words(
    "_to_copy copy_ zeros zeros_like ones ones_like full full_like new_zeros new_ones fill_ zero_ "
    "arange index_put slice_backward select_backward scalar_tensor bernoulli_ eye triu tril cat "
    "masked_fill masked_fill_ new_full record_stream"
)
_SPECIAL = {"div": "truediv", "truediv": "div"}


def _computed(name: str, came: Sequence[str], went: Sequence[str]) -> str:
    """Return what a kernel computes in.

    A product's operands are of one dtype; what is saved beside them (sums of attention) not. Some
    others take 16 bits and return the float32 that they compute in (softmax, sum on CUDA).
    """
    if not came:
        return ""
    return came[0] if name in _PRODUCTS else widest((*came, *went[:1]))


@cache
def _neutral(name: str) -> str:
    home, _, last = name.rpartition(".")
    plain = last.strip("_")
    spellings = [name]
    if last != plain:
        base = _SPECIAL.get(plain, plain)
        spellings += [f"{home}.{n}" for n in (plain, base, plain[1:])]
    return neutral_op("torch", *spellings)


OPS = OpNames(
    _PRODUCTS,
    _MOVES,
    _VIEWS,
    _neutral,
    _computed,
    meets=frozenset(("add", "add_", "sum")),
    functions=True,
)


@contextlib.contextmanager
def layer_calls(
    layers: Mapping[str, nn.Module],
    enter: Callable[[str, nn.Module, Any], None],
    leave: Callable[[str, Any], None],
) -> Iterator[None]:
    """Tell every call of a layer: its path, the module and its arguments; then what it returned.

    Args:
        layers: modules by path, as ``leaves`` finds them.
        enter: before any other hook of the layer.
        leave: after a call; told None by one that raised.
    """
    with contextlib.ExitStack() as stack:
        for path, module in layers.items():
            before = module.register_forward_pre_hook(
                lambda module, args, kwargs, path=path: enter(path, module, (args, kwargs)),
                with_kwargs=True,
                prepend=True,
            )
            after = module.register_forward_hook(
                lambda module, args, output, path=path: leave(path, output), always_call=True
            )
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


class KernelMode(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Tells every kernel of this thread, and of its backward passes, that has run.

    Attributes:
        told: called with the function of aten, its arguments and its result.
    """

    def __init__(self, told: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> None:
        """Tell ``told``."""
        super().__init__()
        self._told = told

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a kernel and tell it."""
        result = func(*args, **(kwargs or {}))
        if not func._schema.name.startswith("prim::"):  # questions, such as for the device
            self._told(func, args, kwargs or {}, result)
        return result


class _FunctionMode(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Tells functions that are called outside of layers."""

    def __init__(self, calls: Dtypes, names: dict[int, str]) -> None:
        super().__init__()
        self._calls, self._names = calls, names

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, calls, path = kwargs or {}, self._calls, self._calls.outside
        came = dtypes_of((args, kwargs)) if path is not None else ()
        if not came or path is None or calls.in_function:
            return func(*args, **kwargs)
        name = str(resolve_name(func) or getattr(func, "__name__", func))
        given = (self._names.get(id(x)) for x in tree_leaves((args, kwargs)))
        params = tuple(dict.fromkeys(found for found in given if found))
        with calls.function(_short(name), params) as kernels:
            result = func(*args, **kwargs)
        seen = OpCall(
            path,
            _short(name),
            _neutral(name),
            came,
            kernels.dtypes(),
            dtypes_of(result),
            params=params,
            product=bool(kernels.products),
        )
        calls.called(seen)
        return result


def _short(name: str) -> str:
    return name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")


def dtypes_of(value: Any) -> tuple[str, ...]:
    """Return the distinct dtypes of the float tensors in ``value``, in order of appearance."""
    found = (item for item in tree_leaves(value) if isinstance(item, torch.Tensor))
    return tuple(dict.fromkeys(_name(t.dtype) for t in found if t.is_floating_point()))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Seen(SeenTensor):
    """A tensor of torch that passed by."""

    def __init__(self, tensor: torch.Tensor, handles: list[Any]) -> None:
        super().__init__()
        self._tensor, self._handles = tensor, handles
        self._takes: list[Callable[[SeenTensor], None]] = []

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from others while it lives."""
        return id(self._tensor), self._tensor._version

    @property
    def dtype(self) -> str:
        return _name(self._tensor.dtype)

    def numbers(self) -> npt.NDArray[np.float32]:
        if not (torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()):
            plain = self._tensor.detach()
            if plain.dtype != torch.float32 or plain.device.type != "cpu":
                plain = plain.to("cpu", torch.float32)
            own: npt.NDArray[np.float32] = plain.numpy()
            return own
        with _disable_current_modes(), torch.no_grad():
            values: npt.NDArray[np.float32] = self._tensor.to("cpu", torch.float32).detach().numpy()
            return values

    def largest_whole(self) -> float:
        if type(self._tensor.detach()) not in (torch.Tensor, nn.Parameter):
            return 0.0  # fake and sharded ones have no values here
        return super().largest_whole()

    def on_gradient(self, take: Callable[[SeenTensor], None]) -> None:
        if not self._tensor.requires_grad:
            return
        if not self._takes:
            self._handles.append(self._tensor.register_hook(partial(_arrived, self._takes)))
        self._takes.append(take)


def _arrived(takes: list[Callable[[SeenTensor], None]], grad: torch.Tensor | None) -> None:
    if grad is None:  # cuDNN's recurrent kernels give none for a state that nobody reads
        return
    seen = _Seen(grad, [])
    for take in takes:
        take(seen)


class Tap:
    """Tells ``calls`` what the layers and kernels of a model do."""

    def __init__(self, model: nn.Module, calls: Calls[Any, Any], like: Tap | None = None) -> None:
        """Know the layers of ``model``; ``like`` is an earlier tap of it."""
        self._model, self._calls = model, calls
        self._built = [id(module) for module in model.modules()]
        if like is not None and like._built == self._built:
            known, listed = like._modules, like._layers
        else:
            known = leaves(model)
            listed = {layer.path: layer for layer in list_layers(model)}
        self._modules: dict[str, nn.Module] = known
        self._layers: dict[str, Layer] = listed
        self._names: dict[int, str] = {}
        if isinstance(calls, Dtypes):
            self._names = {id(param): name for param, name in parameter_names(model).items()}
        self._handles: list[Any] = []  # of hooks on tensors, of which some are the user's
        # A tensor that one layer hands on and the next takes in is looked at, and hooked, once.
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._spans: dict[DtypeCall, tuple[int, int]] = {}  # numbers of the nodes that it made
        self._backward: list[tuple[int, str, str]] = []  # number of the node, kernel, dtype

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Hear calls of layers."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._forget)
            calls = self._calls
            graphs = in_graphs(self._model) if isinstance(calls, Dtypes) else ()
            inside = tuple(f"{path}." if path else "" for path in graphs)
            heard = {
                path: module
                for path, module in self._modules.items()
                if path in graphs or not path.startswith(inside)
            }
            stack.enter_context(layer_calls(heard, self._enter, self._leave))
            if graphs and isinstance(calls, Dtypes):  # their calls are heard, not their layers
                stack.enter_context(hearing(calls, dtypes_of))
            else:  # Compiled code would run past the hooks: it runs as it was written.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    @contextlib.contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """Be in a phase, and hear what is asked for of functions and kernels."""
        calls = self._calls
        with calls.running(phase), contextlib.ExitStack() as stack:
            if isinstance(calls, Dtypes):
                stack.enter_context(_FunctionMode(calls, self._names))
                stack.enter_context(KernelMode(self._kernel))
            elif calls.request.ops and phase == FORWARD:
                stack.enter_context(KernelMode(self._kernel))
            yield

    @contextlib.contextmanager
    def kernels(self) -> Iterator[None]:
        """Hear kernels while the model runs forward, whoever calls it."""
        running: list[KernelMode] = []

        def begin(*_: Any) -> None:
            running.append(KernelMode(self._kernel))
            running[-1].__enter__()

        def end(*_: Any) -> None:
            if running:
                running.pop().__exit__(None, None, None)

        first = self._model.register_forward_pre_hook(begin)
        last = self._model.register_forward_hook(end, always_call=True)
        try:
            yield
        finally:
            first.remove()
            last.remove()

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._seen.clear()

    def _enter(self, path: str, module: nn.Module, given: Any) -> None:
        if not self._calls.listening:
            return  # activation checkpointing runs it again, in the backward pass
        layer = self._layers[path]
        called = CalledLayer(
            path,
            type(module).__name__,
            layer.category,
            partial(attributes, module),
            lambda: dtypes_of(list(module._parameters.values())),
        )
        call = self._calls.enter(called, self._handed(given))
        if not self._calls.values:
            number = torch.autograd._get_sequence_nr()
            self._spans[call] = number, number

    def _leave(self, path: str, output: Any) -> None:
        call = self._calls.leave(path, self._handed(output)) if self._calls.listening else None
        if call in self._spans:
            self._spans[call] = self._spans[call][0], torch.autograd._get_sequence_nr()

    def _found(self, value: Any) -> list[_Seen]:
        """Return the tensors in ``value``, anew each time: kernels write into some."""
        tensors = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
        if not self._calls.values:
            return [_Seen(x, self._handles) for x in tensors if x.is_floating_point()]
        if any(x.is_complex() for x in tensors):
            msg = "complex tensors cannot be inspected"
            raise BackendError(msg)
        return [_Seen(x, self._handles) for x in tensors]

    def _handed(self, value: Any) -> list[_Seen]:
        """Return the tensors that layers hand to each other; written in place, it is another."""
        found = self._found(value)
        if not self._calls.values:  # nothing is kept alive
            return found
        return [self._seen.setdefault(seen.key, seen) for seen in found]

    def _kernel(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        name, calls = func._schema.name.partition("::")[2], self._calls
        if not calls.takes(name):
            return
        given, returned = self._found((args, kwargs)), self._found(result)
        if isinstance(calls, Dtypes) and calls.phase == FORWARD and name in _PRODUCTS:
            operands = dtypes_of(args[:3])  # a mask of attention may have another dtype
            calls.worked(widest(operands), multiply_adds(name, args, result))
            if len(operands) > 1:
                calls.clash(name, operands)
        node = torch._C._current_autograd_node() if calls.phase == BACKWARD else None
        if node is not None and calls.top is None:
            dtype = _computed(name, floats_of(given), floats_of(returned))
            if dtype:
                self._backward.append((node._sequence_nr(), name, dtype))
            return
        # Beside floats, integers are places and workspaces, which nobody may have written.
        floats = [x for x in returned if x.is_float]
        constants = [x for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
        calls.op(name, given, floats or returned, constants)

    def tell_backward(self, calls: Dtypes) -> None:
        """Tell the kernels of the backward pass, each to the call that made its node."""
        ordered = sorted(self._spans.items(), key=lambda item: item[1][0])
        starts = [first for _, (first, _) in ordered]
        for number, name, dtype in self._backward:
            index = bisect_right(starts, number) - 1
            # Calls nest: of those that begin before, the first that has not ended holds the node.
            while index >= 0 and not ordered[index][1][0] <= number < ordered[index][1][1]:
                index -= 1
            if index >= 0:
                calls.backward_op(ordered[index][0], name, dtype)
