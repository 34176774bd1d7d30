"""Layers whose start calls ``reset_parameters``, for classes that have one of their own."""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["starting"]

_LATER = (
    "`{}.reset_parameters` is the layer's own here, which draws anew: make the layer anew, or fill "
    "its Parameters by port.inits"
)


@cache
def starting(layer: Any) -> Any:
    """Return a class of a layer whose ``__init__`` ends with ``self.reset_parameters()``.

    Source: ``Linear.__init__`` and others in torch/nn/modules, torch 2.13.0. The layer's own method
    is what ``super().reset_parameters()`` reaches: while it starts, its Parameters are just drawn.
    """

    class Starting(layer):  # type: ignore[misc]  # nn.Cell is untyped
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._is_starting = True
            self.reset_parameters()
            self._is_starting = False

        def reset_parameters(self) -> None:
            """Leave what was drawn."""
            if not self._is_starting:
                raise NotImplementedError(_LATER.format(layer.__name__))

    Starting.__name__ = Starting.__qualname__ = layer.__name__
    return Starting
