"""Tensors and networks in another dtype: ``to``, ``half``, and there and back."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.modules import _every

__all__ = ["half", "rounded", "to", "type_name"]

_FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)


def to(value: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``value`` in the dtype that is among the arguments; devices mean nothing here.

    Of a Cell the floats that it holds get the dtype in place, as those of torch's Module do.

    Source: ``Tensor.to`` and ``torch.nn.Module.to``, torch/nn/modules/module.py, torch 2.13.0.
    """
    for one in (*args, *kwargs.values()):
        if isinstance(one, Tensor | ms.Type):
            dtype = one.dtype if isinstance(one, Tensor) else one
            if isinstance(value, nn.Cell):
                return _cast(value, dtype)
            return value.astype(dtype) if isinstance(value, Tensor) else value.to(dtype)
    return value


_TYPES = {
    "BFloat16": "BFloat16", "Bool": "Bool", "Float16": "Half", "Float32": "Float",
    "Float64": "Double", "Int16": "Short", "Int32": "Int", "Int64": "Long", "Int8": "Char",
    "UInt8": "Byte", "Complex64": "ComplexFloat", "Complex128": "ComplexDouble",
}  # fmt: skip


def type_name(value: Any) -> str:
    """Return ``tensor.type()``, ``"torch.FloatTensor"``; of anything else what its own gives.

    Source: ``torch.Tensor.type``, torch 2.13.0: of a tensor on the CPU.
    """
    if not isinstance(value, Tensor):
        return str(value.type())
    return f"torch.{_TYPES[str(value.dtype)]}Tensor"


def half(value: Any) -> Any:
    """Return a tensor in float16, or a Cell whose floats are; else what its own ``half`` gives."""
    return to(value, ms.float16) if isinstance(value, Tensor | nn.Cell) else value.half()


def rounded(cell: Any, dtype: Any) -> Any:
    """Round what a Cell holds to ``dtype`` and back, as ``net.half().float()`` does; return it."""
    if not isinstance(cell, nn.Cell):
        return cell.to(dtype)
    for _, held, _ in _every(cell):
        if held.dtype in (ms.float32, ms.float64):
            put(held, held.astype(dtype).astype(held.dtype))
    return cell


def _cast(cell: Any, dtype: Any) -> Any:
    """Give what a Cell holds another dtype, where it is one of floats; return the Cell.

    ``Cell.to`` of MindSpore 2.10 leaves what a kernel has read before in its old dtype.
    """
    for _, held, _ in _every(cell):
        if held.dtype in _FLOATS:
            held.set_dtype(dtype)
    return cell
