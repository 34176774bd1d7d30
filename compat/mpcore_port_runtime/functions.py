"""Functions with a backward pass of their own, written as for torch.autograd.Function.

Source: torch/autograd/function.py and torch/amp/autocast_mode.py, torch 2.13.0.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import mindspore as ms
from mindspore import Tensor, nn, ops

from mpcore_port_runtime.recorded import inside_backward
from mpcore_port_runtime.regions import autocast, autocast_state

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Function", "custom_bwd", "custom_fwd", "once_differentiable", "unscripted"]


def unscripted(function: Any = None, **_: Any) -> Any:
    """Return a function as it is, for torch.jit's decorators: nothing is scripted here."""
    return unscripted if function is None or isinstance(function, bool) else function


class Context:
    """What ``forward`` leaves for ``backward``; attributes of any name may be set on it.

    Attributes:
        needs_input_grad: for each argument whether it is a tensor of floats. MindSpore does not
            say which of them are differentiated; gradients of the others are not used.
        saved_tensors: what ``save_for_backward`` was given; ``saved_variables`` is the same.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(_is_float(value) for value in arguments)
        self.saved_tensors: tuple[Any, ...] = ()
        self.region = ""

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, or None, for ``backward``."""
        self.saved_tensors = tensors

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """Return saved_tensors: its older name, which torch still has."""
        return self.saved_tensors

    def mark_non_differentiable(self, *_: Any) -> None:
        """Say which outputs have no gradient; theirs are zeros here too."""

    def set_materialize_grads(self, value: bool) -> None:
        """Take True, the default: gradients of unused outputs are zeros, not None."""
        if not value:
            msg = "`value` must be True: MindSpore hands zeros to bprop, never None"
            raise NotImplementedError(msg)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class Function:
    """``forward(ctx, ...)`` and ``backward(ctx, ...)`` of a subclass, both static methods."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward``; tensors among ``args`` get their gradients from ``backward``."""
        places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
        return _Node(cls, args, places)(*[args[place] for place in places])

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """Return the outputs."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return a gradient, or None, for each argument of ``forward``."""
        raise NotImplementedError

    setup_context: ClassVar[Callable[..., None] | None] = None


class _Node(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """One call of a Function: MindSpore asks a Cell that has ``bprop`` for its gradients."""

    def __init__(self, function: Any, args: tuple[Any, ...], places: list[int]) -> None:
        super().__init__()
        self.function, self.args, self.places = function, args, places
        self.context = Context(args)

    def construct(self, *tensors: Any) -> Any:
        """Run ``forward``."""
        args = list(self.args)
        for place, tensor in zip(self.places, tensors, strict=True):
            args[place] = tensor
        if self.function.setup_context is None:
            return self.function.forward(self.context, *args)
        made = self.function.forward(*args)
        self.function.setup_context(self.context, tuple(args), made)
        return made

    def bprop(self, *given: Any) -> tuple[Any, ...]:
        """Run ``backward``; ``given`` are the inputs, the output and its gradient."""
        *tensors, _, grad = given
        with inside_backward() if _computes_again(self.function) else nullcontext():
            found = self.function.backward(
                self.context, *(grad if isinstance(grad, tuple | list) else (grad,))
            )
        found = found if isinstance(found, tuple | list) else (found,)
        if len(found) < len(self.args):
            msg = (
                f"`backward` of {self.function.__name__} must return a gradient for each of "
                f"{len(self.args)} arguments, got {len(found)}"
            )
            raise RuntimeError(msg)
        both = zip(tensors, self.places, strict=True)
        return tuple(_fitting(found[place], tensor) for tensor, place in both)


def _computes_again(function: Any) -> bool:
    """Return whether a backward pass runs something under ``enable_grad``, as checkpoints do."""
    code = getattr(inspect.unwrap(function.backward), "__code__", None)
    return code is not None and not _ENABLES.isdisjoint(code.co_names)


_ENABLES = frozenset({"enable_grad", "grad_mode", "set_grad_enabled"})


def _fitting(grad: Any, tensor: Any) -> Any:
    if grad is None:
        return ops.zeros_like(tensor)
    return grad if grad.dtype == tensor.dtype else grad.astype(tensor.dtype)


def custom_fwd(forward: Any = None, *, cast_inputs: Any = None) -> Any:
    """Have ``forward`` note its autocast region; with ``cast_inputs``, run it in that dtype."""
    if forward is None:
        return functools.partial(custom_fwd, cast_inputs=cast_inputs)

    @functools.wraps(forward)
    def run(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        inside = autocast_state() not in ("", str(ms.float32))
        if cast_inputs is None or not inside:
            ctx.region = autocast_state() if inside and cast_inputs is None else ""
            return forward(ctx, *args, **kwargs)
        ctx.region = ""
        with autocast(enabled=False):
            lowered = [_cast(value, cast_inputs) for value in args]
            return forward(ctx, *lowered, **{k: _cast(v, cast_inputs) for k, v in kwargs.items()})

    return run


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_cast(item, dtype) for item in value)
    return value.astype(dtype) if _is_float(value) and value.dtype != ms.float64 else value


def custom_bwd(backward: Any = None) -> Any:
    """Run ``backward`` in the region that ``forward`` ran in."""
    if backward is None:
        return custom_bwd

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        dtypes = {str(dtype): dtype for dtype in (ms.float16, ms.bfloat16)}
        region = dtypes.get(ctx.region)
        with autocast(dtype=region, enabled=region is not None):
            return backward(ctx, *grads)

    return run


def once_differentiable(backward: Any) -> Any:
    """Return ``backward``: second derivatives are not taken of it anyway."""
    return backward
