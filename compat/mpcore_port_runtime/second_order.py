"""Derivatives of derivatives through views: MindSpore 2.10 takes them for zero on CPU, wordlessly.

What the backward pass of a view (``reshape``, ``transpose``, ``squeeze``, an index) gives is no
part of what is differentiated once more, and so is a product of matrices, whose backward pass
transposes. While a gradient is made that has one itself, they run as Cells whose backward pass is
``scatter_nd``, and as ``ops.dense``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, mint, nn, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__: list[str] = []

_VIEWS = """
    view reshape flatten transpose permute swapaxes squeeze unsqueeze expand_dims view_as
    reshape_as narrow t unflatten split chunk unbind repeat_interleave tile movedim
""".split()  # noqa: SIM905  # a list of words is read


class _Moved(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """What takes elements of a tensor to other places; its backward pass is no view."""

    def __init__(self, move: Callable[[Any], Any]) -> None:
        super().__init__()
        self.move = move

    def construct(self, x: Any) -> Any:
        """Return the elements at their new places."""
        return self.move(x)

    def bprop(self, x: Any, out: Any, dout: Any) -> tuple[Any]:
        """Return the gradient, each number where its element was."""
        del out
        places = self.move(Tensor(np.arange(x.size, dtype=np.int32).reshape(x.shape))).asnumpy()
        at = np.stack(np.unravel_index(places, x.shape), -1).astype(np.int32)
        return (ops.scatter_nd(Tensor(at), dout, tuple(x.shape)),)


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view whose backward pass is differentiated as well."""

    def moved(x: Any, *args: Any, **kwargs: Any) -> Any:
        def part(place: int) -> Callable[[Any], Any]:
            return lambda one: function(one, *args, **kwargs)[place]

        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
            return function(x, *args, **kwargs)
        made = function(x, *args, **kwargs)
        if isinstance(made, Tensor):
            return _Moved(lambda one: function(one, *args, **kwargs))(x)
        return tuple(_Moved(part(place))(x) for place in range(len(made)))

    return moved


def _stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``stack`` as what joins tensors that have the new axis."""

    def stacked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        axis = _axis((tensors, *args), kwargs, 0)
        return ops.cat([ops.expand_dims(one, axis) for one in tensors], axis)

    del function
    return stacked


def _joined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``cat`` along the first axis: along another its backward pass takes views."""

    def joined(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        axis = _axis((tensors, *args), kwargs, 0) % max(tensors[0].ndim, 1)
        if axis == 0:
            return function(list(tensors), 0)
        return ops.swapaxes(function([ops.swapaxes(one, 0, axis) for one in tensors], 0), 0, axis)

    return joined


def _reduced(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes a sum or mean over some axes keep these axes, until it is reshaped."""
    kept = getattr(mint, name)

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        def reduced(x: Any, *args: Any, **kwargs: Any) -> Any:
            plain = function(x, *args, **kwargs)
            axis = _axis((x, *args), kwargs, None)
            if axis is None or plain.ndim == x.ndim or plain.dtype != x.dtype:
                return plain
            return ops.reshape(kept(x, axis, True), tuple(plain.shape))

        return reduced

    return made


def _axis(args: tuple[Any, ...], kwargs: dict[str, Any], default: Any) -> Any:
    """Return the axis of a call: its second argument, ``axis`` or ``dim``."""
    given = args[1] if len(args) > 1 else default
    return kwargs.get("axis", kwargs.get("dim", given))


def _product(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product of matrices as a dense layer's: its derivatives have derivatives."""

    def multiplied(left: Any, right: Any) -> Any:
        plain = isinstance(left, Tensor) and isinstance(right, Tensor) and right.ndim == 2
        if not plain or left.ndim < 2:
            return function(left, right)
        return ops.dense(left, right.transpose(0, 1))

    return multiplied


def _replaced() -> list[tuple[Any, str, Any]]:
    """Return what stands for the views and products of MindSpore: owner, name, function."""
    both: dict[str, Callable[..., Any]] = dict.fromkeys(_VIEWS, _followed)
    both |= dict.fromkeys(("matmul", "mm"), _product)
    both |= {name: _reduced(name) for name in ("sum", "mean")}
    of_modules = both | {"stack": _stacked, "cat": _joined, "concat": _joined}
    of_tensors = both | {"__getitem__": _followed, "__matmul__": _product}
    found: list[tuple[Any, str, Any]] = [
        (Tensor, "T", property(_followed(lambda one: ops.transpose(one, _turned(one)))))
    ]
    for owner, makers in ((Tensor, of_tensors), (ops, of_modules), (mint, of_modules)):
        held = {name: getattr(owner, name) for name in makers if hasattr(owner, name)}
        found += [(owner, name, makers[name](function)) for name, function in held.items()]
    return found


def _turned(x: Any) -> tuple[int, ...]:
    return tuple(reversed(range(x.ndim)))


_FOLLOWED: list[tuple[Any, str, Any]] = []
_INSIDE = [0]


@contextmanager
def followed() -> Iterator[None]:
    """Have views and products of matrices followed by derivatives of derivatives in here."""
    if _INSIDE[0]:
        yield
        return
    if not _FOLLOWED:
        _FOLLOWED.extend(_replaced())
    kept = [(owner, name, owner.__dict__.get(name, _FOLLOWED)) for owner, name, _ in _FOLLOWED]
    _INSIDE[0] += 1
    try:
        for owner, name, function in _FOLLOWED:
            setattr(owner, name, function)
        yield
    finally:
        _INSIDE[0] -= 1
        for owner, name, before in kept:
            if before is _FOLLOWED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
