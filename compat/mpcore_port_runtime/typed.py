"""torch's old tensor types, and tensors in texts."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

__all__ = [
    "BoolTensor",
    "ByteTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "byte_storage",
    "clone",
    "dot",
    "dtype_name",
    "fields",
    "first",
    "index",
    "logged",
    "new",
    "new_full",
    "number",
    "own",
    "shown",
    "singles",
]

Tensor.__array_priority__ = 1000  # as torch's: numpy leaves `np.sqrt(2.0) * tensor` to the tensor


def _made(dtype: Any, given: tuple[Any, ...]) -> Any:
    if len(given) == 1 and not isinstance(given[0], int):
        if isinstance(given[0], Tensor):
            return given[0].astype(dtype)
        return Tensor(np.array(given[0]), dtype)
    given = given or (0,)
    return Tensor(np.zeros(given, ms.dtype_to_nptype(dtype)))  # torch's are not set at all


class _Type(type):
    """A type of tensors: called it makes one, asked it knows those of its dtype."""

    _dtype: Any

    def __new__(cls, name: str, bases: Any, body: Any, dtype: Any) -> Any:
        return super().__new__(cls, name, bases, body | {"_dtype": dtype})

    def __init__(cls, name: str, bases: Any, body: Any, dtype: Any) -> None:
        del dtype
        super().__init__(name, bases, body)

    def __call__(cls, *given: Any, device: Any = None) -> Any:
        del device  # one process has one
        return _made(cls._dtype, given)

    def __instancecheck__(cls, other: Any) -> bool:
        return isinstance(other, Tensor) and other.dtype == cls._dtype


class FloatTensor(metaclass=_Type, dtype=ms.float32):
    """Return a tensor of float32: of values, of another tensor, or of these sizes (zeros)."""


class DoubleTensor(metaclass=_Type, dtype=ms.float64):
    """Return a tensor of float64: of values, of another tensor, or of these sizes (zeros)."""


class HalfTensor(metaclass=_Type, dtype=ms.float16):
    """Return a tensor of float16: of values, of another tensor, or of these sizes (zeros)."""


class LongTensor(metaclass=_Type, dtype=ms.int64):
    """Return a tensor of int64: of values, of another tensor, or of these sizes (zeros)."""


class IntTensor(metaclass=_Type, dtype=ms.int32):
    """Return a tensor of int32: of values, of another tensor, or of these sizes (zeros)."""


class ByteTensor(metaclass=_Type, dtype=ms.uint8):
    """Return a tensor of uint8: of values, of another tensor, or of these sizes (zeros)."""


class BoolTensor(metaclass=_Type, dtype=ms.bool_):
    """Return a tensor of bool: of values, of another tensor, or of these sizes (zeros)."""


def byte_storage(buffer: Any, byte_order: Any = None) -> Any:
    """Return the bytes of a buffer as numbers, torch's ``ByteStorage.from_buffer``."""
    del byte_order  # of one byte there is one order
    return np.frombuffer(buffer, np.uint8).copy()


def dtype_name(dtype: Any) -> str:
    """Return what torch calls a type, as ``torch.float32``; of anything else its own text."""
    return f"torch.{str(dtype).lower()}" if isinstance(dtype, ms.Type) else str(dtype)


def own(value: Any) -> Any:
    """Return a tensor's copy, whose parts may be set while a loss is differentiated; all else."""
    return value.copy() if isinstance(value, Tensor) else value


def shown(value: Any) -> Any:
    """Return the number of a tensor with one, anything else as it is: formats want a number."""
    return value.item() if isinstance(value, Tensor) and value.size == 1 else value


def dot(value: Any, other: Any) -> Any:
    """Return the product of two vectors; of arrays what numpy's ``dot`` returns."""
    return (value * other).sum() if isinstance(value, Tensor) else value.dot(other)


def new_full(value: Any, size: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Return a tensor of one number, of the dtype of ``value`` where none is given."""
    shape = tuple(int(one) if isinstance(one, Tensor) else one for one in size)
    return ops.full(shape, fill_value, dtype=value.dtype if dtype is None else dtype)


def index(value: Any) -> Any:
    """Return a place for a tensor of MindSpore: of numpy's numbers and arrays Python's own."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def number(value: Any) -> Any:
    """Return a number of Python's for one of numpy's, anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def singles(values: Any) -> Any:
    """Return numbers for the tensors of one number in a list, of any shape, as torch.tensor does.

    Args:
        values: a list or tuple, of others perhaps; what is no such tensor stays as it is.
    """
    if isinstance(values, (list, tuple)):
        return [singles(value) for value in values]
    if isinstance(values, Tensor) and values.ndim and values.size == 1:
        return values.reshape(())
    return values


def new(value: Any, *given: Any) -> Any:
    """Return a tensor of the dtype of ``value``, of values or of sizes, as ``value.new`` does."""
    return _made(value.dtype, given) if isinstance(value, Tensor) else value.new(*given)


class fields:  # noqa: N801  # it is called as a function
    """Stands for a value in ``text.format``: its fields, and theirs, are written as numbers.

    Args:
        value: what the fields are of, as ``losses`` in ``"{losses.avg:.3f}"``.
    """

    def __init__(self, value: Any) -> None:
        self.__value = value

    def __getattr__(self, name: str) -> fields:
        """Return the attribute, which stands for its value as well."""
        return fields(getattr(self.__value, name))

    def __getitem__(self, key: Any) -> fields:
        """Return the part, which stands for its value as well."""
        return fields(self.__value[key])

    def __format__(self, spec: str) -> str:
        """Write the value, of a tensor with one number that number."""
        return format(shown(self.__value), spec)

    def __str__(self) -> str:
        """Write it as it is."""
        return str(self.__value)

    def __repr__(self) -> str:
        """Write it as it is."""
        return repr(self.__value)


def first(value: Any) -> Any:
    """Return ``value[0]``; without axes its number: torch up to 0.4 knew no tensor without any."""
    alone = isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0
    return value.item() if alone else value[0]


def clone(value: Any) -> Any:
    """Return ``value.clone()``: a copy of a tensor; settings and signals have one of their own."""
    return value.copy() if isinstance(value, ms.Tensor) else value.clone()


def logged(values: Any) -> Any:
    """Return what a logger takes: numbers and arrays for tensors, in mappings and lists too."""
    values = shown(values)
    if isinstance(values, Tensor):
        return values.asnumpy()
    if isinstance(values, dict):
        return {name: logged(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        made = [logged(value) for value in values]
        return made if isinstance(values, list) else tuple(made)
    return values
