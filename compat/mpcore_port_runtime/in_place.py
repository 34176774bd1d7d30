"""What torch changes in place: MindSpore's in-place methods change nothing in eager mode on CPU."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from mpcore_mindspore.shims import pynative_executor
from mpcore_port_runtime.recorded import recording, resume, unrecorded
from mpcore_port_runtime.refusal import PortWarning

__all__ = [
    "changed",
    "copied",
    "copy_of",
    "data_of",
    "part_changed",
    "put",
    "set_data",
    "set_places",
    "set_through",
    "variable",
    "written",
    "written_each",
]


def put(tensor: Any, value: Any) -> Any:
    """Give a Parameter, a buffer or a gradient other values, in place; return it."""
    fresh = value if isinstance(value, Tensor) else Tensor(value)
    fresh = fresh.astype(tensor.dtype)
    if tuple(fresh.shape) != tuple(tensor.shape):
        if fresh.ndim == 0:  # MindSpore broadcasts no tensor without axes
            fresh = fresh.reshape((1,) * tensor.ndim)
        fresh = ops.broadcast_to(fresh, tuple(tensor.shape))
    if isinstance(tensor, Parameter):
        with unrecorded():  # torch allows it under no_grad, and to .data
            ops.assign(tensor, fresh)
    elif _is_recorded(tensor):
        raise NotImplementedError(_GRADED)
    else:
        tensor.assign_value(fresh.copy())  # else of a Parameter both have one memory
    return tensor


def _is_recorded(tensor: Any) -> bool:
    """Return whether gradients go through a tensor, where they are recorded: not in no_grad."""
    graded = recording() and getattr(tensor, "_grad_node", None) is not None
    return graded and pynative_executor.enable_grad()


_GRADED = (
    "gradients go through what is changed in place, and something else holds it: MindSpore has no "
    "such; write x = x + ... where nothing else has to see it"
)
_CHANGES: dict[str, tuple[Any, Any]] = {
    "+=": (operator.iadd, operator.add),
    "-=": (operator.isub, operator.sub),
    "*=": (operator.imul, operator.mul),
    "/=": (operator.itruediv, operator.truediv),
    "//=": (operator.ifloordiv, operator.floordiv),
    "%=": (operator.imod, operator.mod),
    "**=": (operator.ipow, operator.pow),
    "@=": (operator.imatmul, operator.matmul),
    "&=": (operator.iand, operator.and_),
    "|=": (operator.ior, operator.or_),
    "^=": (operator.ixor, operator.xor),
    "<<=": (operator.ilshift, operator.lshift),
    ">>=": (operator.irshift, operator.rshift),
}
"""What Python runs of anything, and of a tensor, whose own in-place operations are others."""


def changed(word: str, held: Any, by: Any) -> Any:
    """Return what ``held += by`` gives: of a tensor the very tensor, as all see it that hold it.

    Numbers, lists and arrays are Python's own matter.
    """
    in_place, of_tensors = _CHANGES[word]
    if not isinstance(held, Tensor):
        return in_place(held, by)
    fresh = of_tensors(held, by)
    pending = getattr(held, "mpcore_pending", None) is not None
    if isinstance(held, Parameter) or not (pending or _node_of(fresh) is not None):
        return written(held, fresh)
    return _seen_by_all(held, fresh)


_FREE = frozenset(
    """
    Abs Add AddExt AddN BCEWithLogitsLoss BinaryCrossEntropy Cast ClampScalar Divs L1LossExt Log
    MSELossExt MeanExt Mul Muls Neg ReduceMean ReduceSum Select SmoothL1Loss Sub SubExt SumExt
    """.split()  # noqa: SIM905  # a list of words is read
)
"""Operations whose gradients need not what they gave (mindspore 2.10.0)."""
_RANGES = (int, slice, type(...))
_STAYS = (
    "a tensor that something else holds is changed in place: MindSpore's gradients may need its "
    "earlier values, which the other holder keeps"
)


_NO_VIEWS = frozenset(
    """
    Abs Add AddExt AddScalar BatchMatMul BatchMatMulExt BiasAdd Cast ClampScalar Concat Conv2D
    CumSum Dense Div Divs Dropout Exp Gather LayerNorm Log LogSoftmax MaskedFill MatMul MatMulExt
    Maximum MeanExt Minimum Mul Muls Neg Pow ReLU Rsqrt SelectView Select SiLU Sigmoid Softmax Sqrt
    Stack StridedSlice Sub SubExt SubScalar SumExt Tanh Tril Triu
    """.split()  # noqa: SIM905  # a list of words is read
)
"""Operations that give memory of their own, or parts that set their whole (mindspore 2.10.0)."""


def _node_of(value: Any) -> Any:
    return getattr(value, "_grad_node", None)


def _is_free(tensor: Any) -> bool:
    """Return whether no gradients need the values that a recorded tensor has now."""
    node = _node_of(tensor)
    if node is None or node.name() in _FREE:
        return True
    by_what_gets_none = all(one is None for one, _ in node.next_functions[1:])
    return node.name() == "Div" and by_what_gets_none


def _whole_of(part: Any) -> tuple[Any, Any] | None:
    """Return the tensor that ``x[1:]`` was taken of, and where; None of what is no such part."""
    parent = getattr(part, "parent_tensor_", None)
    index = getattr(part, "index_of_parent_", None)
    places = index if isinstance(index, tuple) else (index,)
    if parent is None or not all(isinstance(one, _RANGES) for one in places):
        return None
    return parent, index


def _seen_by_all(held: Any, fresh: Any) -> Any:
    """Return what gradients go through, and give its values to what else holds the old tensor."""
    fresh = fresh if fresh.dtype == held.dtype else fresh.astype(held.dtype)
    if (whole := _whole_of(held)) is not None:
        parent, index = whole
        parent[index] = fresh
        return parent[index]
    others = [held, *getattr(held, "mpcore_before", ())]
    small = held.ndim <= 1 and fresh.shape == held.shape  # losses: of others more may hang on them
    if not small or not all(_is_free(one) for one in others):
        warnings.warn(_STAYS, PortWarning, stacklevel=3)
        return fresh
    for one in others:
        _write(one, fresh)
    fresh.mpcore_before = others
    return fresh


def written(held: Any, value: Any) -> Any:
    """Write values into a tensor's own memory: what else holds it sees them, and so do views."""
    if isinstance(held, Parameter):
        return put(held, value)
    fresh = value if isinstance(value, Tensor) else Tensor(value)
    node = _node_of(held)
    if node is not None and held.ndim and node.name() in _NO_VIEWS:
        held[:] = fresh.astype(held.dtype)  # MindSpore differentiates it, for all that hold it
        return held
    if _node_of(fresh) is not None:
        raise NotImplementedError(_GRADED)
    held = copied(held)
    _write(held, fresh.astype(held.dtype))
    return held


def written_each(held: Any, values: Any) -> Any:
    """Write each of several results into the tensor that is there for it: torch's ``out``."""
    for one, value in zip(held, values, strict=True):
        written(one, value)
    return held


def _write(held: Any, fresh: Any) -> None:
    """Write into a tensor's own memory: where MindSpore differentiates, reshape gives a copy."""
    with ms._no_grad():
        whole = held if held.ndim else held.reshape(1)
        whole[:] = fresh  # of a slice MindSpore keeps the memory, of [...] none
    resume()


def set_places(held: Any, places: Any, value: Any) -> None:
    """Set ``held[places] = value``, for a mask too, where all see it that hold a view of it."""
    if not isinstance(held, Tensor) or isinstance(held, Parameter):
        held[places] = value
        return
    fresh = held.copy()
    fresh[places] = value
    written(held, fresh)


def set_through(held: Any, seen: Any, places: Any, value: Any) -> None:
    """Set ``x.view(-1)[places] = value`` in ``x`` itself, gradients or not."""
    if not isinstance(held, Tensor) or not held.ndim:
        seen(held)[places] = value
        return
    found = seen(Tensor(np.arange(held.size).reshape(held.shape)))[places]
    fresh = value if isinstance(value, Tensor) else Tensor(value)
    fresh = ops.broadcast_to(fresh.astype(held.dtype), found.shape)
    flat = held.reshape(-1).copy()
    flat[found.reshape(-1)] = fresh.reshape(-1)
    if isinstance(held, Parameter):
        put(held, flat.reshape(held.shape))
    else:
        held[:] = flat.reshape(held.shape)


def part_changed(held: Any, places: Any, value: Any) -> Any:
    """Set ``held[places] = value`` and return that part: what ``x[:, 1:].mul_(y)`` gives."""
    held[places] = value
    return held[places]


def copied(part: Any) -> Any:
    """Return what was taken of a tensor: where a mask or places took it, nothing is set in both."""
    if isinstance(part, Tensor):
        index = getattr(part, "index_of_parent_", None)
        places = index if isinstance(index, tuple) else (index,)
        if any(isinstance(one, (Tensor, list)) for one in places):
            part.parent_tensor_ = part.index_of_parent_ = None
    return part


def copy_of(value: Any) -> Any:
    """Return a tensor's copy, and anything else as it is: ``y[...] = x`` takes x itself."""
    return value.copy() if isinstance(value, Tensor) else value


Parameter.copy = Tensor.copy  # MindSpore's makes a Parameter, which no gradient passes on


class _OfTensors(type):
    """What a tensor is an instance of, as in torch since 0.4."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class variable(metaclass=_OfTensors):  # noqa: N801  # stands where torch's function-like class did
    """What gives back what it is given, as torch.autograd.Variable does; tensors are of it."""

    def __new__(cls, data: Any) -> Any:
        """Return ``data``."""
        return data


def set_data(holder: Any, value: Any) -> None:
    """Run ``holder.data = value``: of a tensor values and shape, of anything else the attribute."""
    if isinstance(holder, Tensor) and isinstance(value, Tensor) and value.shape != holder.shape:
        _reshaped(holder, value.astype(holder.dtype).copy())
    elif isinstance(holder, Tensor):
        put(holder, value)
    else:
        holder.data = value


def _reshaped(tensor: Any, fresh: Any) -> None:
    """Give a tensor values of another shape, as ``tensor.data = fresh`` does."""
    if isinstance(tensor, Parameter):
        tensor.set_data(fresh, slice_shape=True)
        own = tensor.dtype  # what ran before has left the old shape with it, until that changes
        tensor.set_dtype(ms.float16 if own == ms.float32 else ms.float32)
        tensor.set_dtype(own)
        with unrecorded():
            ops.assign(tensor, fresh)
    elif _is_recorded(tensor):
        raise NotImplementedError(_GRADED)
    else:
        tensor.assign_value(fresh)


def data_of(holder: Any) -> Any:
    """Return ``holder.data``, of a tensor what ``holder.data[mask] = 0`` changes: itself."""
    return holder if isinstance(holder, Tensor) else holder.data
