"""Sizes of convolutions and pools: torch takes lists, and two paddings are one for each axis.

MindSpore's layers take one number, or one for each side of each axis (mindspore/nn/layer/conv.py
and conv3d.py, 2.10.0), and raise at torch's. What a script writes out is written so in its port;
what it hands on by a name is known when it runs.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from mindspore import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def _plain(value: Any) -> Any:
    """Return a list of sizes as a tuple, of one size as that: it is every axis's in torch."""
    if not isinstance(value, (tuple, list)):
        return value
    return value[0] if len(value) == 1 else tuple(value)


def _of_lists(make: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` whose sizes may be lists."""

    @wraps(make)
    def made(self: Any, *args: Any, **settings: Any) -> None:
        settings = {name: _plain(value) for name, value in settings.items()}
        make(self, *(_plain(one) for one in args), **settings)

    return made


def _of_axes(make: Callable[..., None], axes: int) -> Callable[..., None]:
    """Return an ``__init__`` whose ``padding`` may have one number for each axis."""

    @wraps(make)
    def made(self: Any, *args: Any, **settings: Any) -> None:
        sizes = settings.get("padding")
        if isinstance(sizes, (tuple, list)) and len(sizes) == axes:
            settings["padding"] = tuple(size for size in sizes for _ in range(2))
        make(self, *args, **settings)

    return made


_AXES = {nn.Conv2d: 2, nn.Conv2dTranspose: 2, nn.Conv3d: 3, nn.Conv3dTranspose: 3}
for _layer, _axes in _AXES.items():
    _layer.__init__ = _of_lists(_of_axes(_layer.__init__, _axes))
for _layer in (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d):
    _layer.__init__ = _of_lists(_layer.__init__)
