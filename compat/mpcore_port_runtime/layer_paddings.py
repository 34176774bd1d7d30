"""How far a convolution pads: two sizes are one for each axis in torch.

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
    _layer.__init__ = _of_axes(_layer.__init__, _axes)
