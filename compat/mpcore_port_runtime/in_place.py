"""What torch changes in place: MindSpore's in-place methods change nothing in eager mode on CPU."""

from __future__ import annotations

import operator
from typing import Any

from mindspore import Parameter, Tensor, ops

from mpcore_port_runtime.recorded import recording, unrecorded

__all__ = [
    "changed",
    "copied",
    "copy_of",
    "data_of",
    "part_changed",
    "put",
    "set_data",
    "set_places",
    "variable",
    "written",
]


def put(tensor: Any, value: Any) -> Any:
    """Give a Parameter, a buffer or a gradient other values, in place; return it."""
    fresh = value if isinstance(value, Tensor) else Tensor(value)
    fresh = fresh.astype(tensor.dtype)
    if tuple(fresh.shape) != tuple(tensor.shape):
        fresh = ops.broadcast_to(fresh, tuple(tensor.shape))
    if isinstance(tensor, Parameter):
        with unrecorded():  # torch allows it under no_grad, and to .data
            ops.assign(tensor, fresh)
    elif recording() and getattr(tensor, "_grad_node", None) is not None:
        raise NotImplementedError(_GRADED)
    else:
        tensor.assign_value(fresh.copy())  # else of a Parameter both have one memory
    return tensor


_GRADED = (
    "gradients go through what is changed in place, and something else holds it: MindSpore has no "
    "such; write x = x + ... where nothing else has to see it"
)
_CHANGES: dict[str, Any] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}


def changed(word: str, held: Any, by: Any) -> Any:
    """Return what ``held += by`` gives: of a tensor the very tensor, as all see it that hold it.

    Numbers, lists and arrays are Python's own matter.
    """
    if not isinstance(held, Tensor):
        return _CHANGES[word](held, by)
    return written(held, _CHANGES[word](held, by))


def written(held: Any, value: Any) -> Any:
    """Write values into a tensor's own memory: what else holds it sees them, and so do views."""
    if isinstance(held, Parameter):
        return put(held, value)
    fresh = value if isinstance(value, Tensor) else Tensor(value)
    if getattr(fresh, "_grad_node", None) is not None:
        raise NotImplementedError(_GRADED)
    held = copied(held)
    whole = held if held.ndim else held.reshape(1)
    whole[:] = fresh.astype(held.dtype)  # of a slice MindSpore keeps the memory, of [...] none
    return held


def set_places(held: Any, places: Any, value: Any) -> None:
    """Set ``held[places] = value``, for a mask too, where all see it that hold a view of it."""
    if not isinstance(held, Tensor) or isinstance(held, Parameter):
        held[places] = value
        return
    fresh = held.copy()
    fresh[places] = value
    written(held, fresh)


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
    """Run ``holder.data = value``: of a tensor its values, of anything else the attribute."""
    if isinstance(holder, Tensor):
        put(holder, value)
    else:
        holder.data = value


def data_of(holder: Any) -> Any:
    """Return ``holder.data``, of a tensor what ``holder.data[mask] = 0`` changes: itself."""
    return holder if isinstance(holder, Tensor) else holder.data
