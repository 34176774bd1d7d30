"""What torch changes in place: MindSpore's in-place methods change nothing in eager mode on CPU."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, ops

__all__ = ["data_of", "put", "set_data", "variable"]


def put(tensor: Any, value: Any) -> Any:
    """Give a Parameter, a buffer or a gradient other values, in place; return it."""
    fresh = value if isinstance(value, Tensor) else Tensor(value)
    fresh = fresh.astype(tensor.dtype)
    if tuple(fresh.shape) != tuple(tensor.shape):
        fresh = ops.broadcast_to(fresh, tuple(tensor.shape))
    if isinstance(tensor, Parameter):
        ops.assign(tensor, fresh)
    else:
        tensor.assign_value(fresh.copy())  # else of a Parameter both have one memory
    return tensor


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
