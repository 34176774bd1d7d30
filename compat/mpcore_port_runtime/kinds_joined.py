"""``cat`` and ``stack`` of tensors of several dtypes: torch takes the widest, MindSpore raises.

Under 16 bits that is what a layer gives beside what the batch holds. Where all are alike the
functions are MindSpore's; a compiled step takes those alone.

Source: ``cat`` and ``stack`` in torch/_refs/__init__.py, torch 2.13.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import mint, ops

from mpcore_port_runtime.reductions import widened

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def _alike(tensors: Any) -> Any:
    """Return the tensors, in the widest of their dtypes."""
    first = tensors[0].dtype
    for one in tensors:
        if one.dtype != first:
            return widened(tensors)
    return tensors


def _along_dim(native: Callable[..., Any]) -> Callable[..., Any]:
    def join(tensors: Any, dim: int = 0) -> Any:
        return native(_alike(tensors), dim)

    return join


def _along_axis(native: Callable[..., Any]) -> Callable[..., Any]:
    def join(tensors: Any, axis: int = 0) -> Any:
        return native(_alike(tensors), axis)

    return join


def _at_once(native: Callable[..., Any]) -> Callable[..., Any]:
    def join(tensors: Any) -> Any:
        return native(_alike(tensors))

    return join


for _holder, _name, _made in (
    (mint, "cat", _along_dim),
    (mint, "concat", _along_dim),
    (mint, "stack", _along_dim),
    (ops, "cat", _along_axis),
    (ops, "concat", _along_axis),
    (ops, "stack", _along_axis),
    (ops, "hstack", _at_once),
    (ops, "vstack", _at_once),
    (ops, "dstack", _at_once),
    (ops, "column_stack", _at_once),
):
    setattr(_holder, _name, _made(getattr(_holder, _name)))
