"""Padding as torch has it: sizes below zero crop, and reflection has up to three axes.

On CPU (mindspore 2.10.0) ops.pad with a size below zero gives other values and gradients than
torch's, or does not return; nn.ZeroPad2d has right values and wrong gradients.
"""

from __future__ import annotations

from typing import Any

from mindspore import nn, ops

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "pad",
]


def pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """Return torch.nn.functional.pad.

    ``pad`` has two whole numbers an axis, the last axis first: what is added in front and behind;
    one below zero takes values away there. ``mode`` is ``"constant"`` (filled with ``value``, 0 by
    default), ``"reflect"``, ``"replicate"`` or ``"circular"``. Raises ValueError where more would
    be taken away than there is, NotImplementedError for a circular size below zero. Source: torch
    2.13, aten/src/ATen/native/PadNd.cpp.
    """
    sizes = [int(one) for one in pad]
    added = [0 if one < 0 else one for one in sizes]
    taken = [one if one < 0 else 0 for one in sizes]
    _check(input, added, taken, mode)
    return _cropped(_widened(input, added, mode, value), taken)


def _check(x: Any, added: list[int], taken: list[int], mode: str) -> None:
    """Refuse what torch refuses and MindSpore does not."""
    if mode == "circular" and any(taken):
        msg = f"`pad` is {added} and takes away {taken}: circular padding below zero is not ported"
        raise NotImplementedError(msg)
    for place in range(len(added) // 2):
        axis = x.ndim - 1 - place
        size, front, behind = x.shape[axis], 2 * place, 2 * place + 1
        if mode == "constant" and size + taken[front] + taken[behind] < 0:
            msg = f"`pad` takes {-taken[front] - taken[behind]} of {size} values of axis {axis}"
            raise ValueError(msg)
        if mode == "circular" and (added[front] > size or added[behind] > size):
            msg = f"`pad` goes round axis {axis}, of {size} values, more than once"
            raise ValueError(msg)


def _widened(x: Any, added: list[int], mode: str, value: Any) -> Any:
    if not any(added):
        return x
    if mode == "reflect" and len(added) == 6:
        return _reflected(x, added)
    return ops.pad(x, added, mode) if value is None else ops.pad(x, added, mode, value)


def _cropped(x: Any, taken: list[int]) -> Any:
    """Return what is left where sizes are below zero."""
    for place in range(len(taken) // 2):
        front, behind = taken[2 * place], taken[2 * place + 1]
        if front or behind:
            axis = x.ndim - 1 - place
            x = ops.narrow(x, axis, -front, x.shape[axis] + front + behind)
    return x


def _reflected(x: Any, sizes: list[int]) -> Any:
    """Reflect three axes: MindSpore's kernel has two."""
    last = sizes[:4]
    *lead, depth, height, width = x.shape
    flat = ops.pad(ops.reshape(x, (-1, depth, height, width)), last, "reflect")
    _, _, height, width = flat.shape
    rows = ops.pad(
        ops.reshape(flat, (-1, depth, height * width)), [0, 0, sizes[4], sizes[5]], "reflect"
    )
    return ops.reshape(rows, (*lead, -1, height, width))


class _Pad(nn.Cell):  # type: ignore[misc]  # nn.Cell is untyped
    """A layer that pads: two sizes an axis, or one number for all."""

    axes, mode = 2, "constant"

    def __init__(self, padding: Any, value: Any = None) -> None:
        super().__init__()
        same = isinstance(padding, int)
        self.padding = (padding,) * (2 * self.axes) if same else tuple(padding)
        self.value = value

    def construct(self, x: Any) -> Any:
        """Return what the function does."""
        return pad(x, self.padding, self.mode, self.value)


class _Fixed(_Pad):
    """A layer whose padding has no value of its own."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding)


class ZeroPad2d(_Fixed):
    """torch.nn.ZeroPad2d."""


class ZeroPad1d(_Fixed):
    """torch.nn.ZeroPad1d."""

    axes = 1


class ZeroPad3d(_Fixed):
    """torch.nn.ZeroPad3d."""

    axes = 3


class ConstantPad2d(_Pad):
    """torch.nn.ConstantPad2d."""


class ConstantPad1d(_Pad):
    """torch.nn.ConstantPad1d."""

    axes = 1


class ConstantPad3d(_Pad):
    """torch.nn.ConstantPad3d."""

    axes = 3


class ReflectionPad2d(_Fixed):
    """torch.nn.ReflectionPad2d."""

    mode = "reflect"


class ReflectionPad1d(ReflectionPad2d):
    """torch.nn.ReflectionPad1d."""

    axes = 1


class ReflectionPad3d(ReflectionPad2d):
    """torch.nn.ReflectionPad3d."""

    axes = 3


class ReplicationPad2d(_Fixed):
    """torch.nn.ReplicationPad2d."""

    mode = "replicate"


class ReplicationPad1d(ReplicationPad2d):
    """torch.nn.ReplicationPad1d."""

    axes = 1


class ReplicationPad3d(ReplicationPad2d):
    """torch.nn.ReplicationPad3d."""

    axes = 3


class CircularPad2d(_Fixed):
    """torch.nn.CircularPad2d."""

    mode = "circular"


class CircularPad1d(CircularPad2d):
    """torch.nn.CircularPad1d."""

    axes = 1


class CircularPad3d(CircularPad2d):
    """torch.nn.CircularPad3d."""

    axes = 3
