"""What makes layers by torch's arguments, and is asked whether something is such a layer.

torch's classes are both at once, and a class that is handed on may be used as either:
``replace(model, nn.SiLU, nn.ReLU)`` asks ``isinstance(child, old)`` and calls ``new()``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from mindspore import nn

import mpcore_port_runtime as port

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Maker"]

_NATIVE = {"ConvTranspose2d": "Conv2dTranspose", "Hardsigmoid": "HSigmoid", "Linear": "Dense"}
"""torch's names of layers that MindSpore calls otherwise."""


class Maker:
    """A function that makes a layer by torch's arguments; ``isinstance`` asks for its kind."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._make = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a layer."""
        return self._make(*args, **kwargs)

    def __instancecheck__(self, one: Any) -> bool:
        """Return whether something is MindSpore's own such layer, or the runtime's."""
        return isinstance(one, self._kinds())

    def __subclasscheck__(self, kind: Any) -> bool:
        """Return the same of a class."""
        return kind is self or (isinstance(kind, type) and issubclass(kind, self._kinds()))

    def __reduce__(self) -> str:
        """Return its name: copied, it is itself, as a class is."""
        return self.__name__

    def _kinds(self) -> tuple[type, ...]:
        name = self.__name__
        found = getattr(nn, _NATIVE.get(name, name), None), getattr(port, name, None)
        return tuple(kind for kind in found if isinstance(kind, type))

    __name__: str
