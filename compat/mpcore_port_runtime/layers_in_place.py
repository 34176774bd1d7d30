"""Layers that change what they are given, where a list keeps what each layer of a network gave."""

from __future__ import annotations

from typing import Any

from mindspore import nn

__all__ = ["in_place", "through"]


def in_place(layer: Any) -> Any:
    """Return a layer that is known to work in place in torch: ``nn.ReLU(inplace=True)``."""
    layer.inplace = True
    return layer


def through(layer: Any, value: Any, *kept: Any) -> Any:
    """Return ``layer(value)``; of a layer in place lists and dictionaries keep that for ``value``.

    Layers of MindSpore change nothing: what torch's would have changed is put in its place.
    """
    made = layer(value)
    first = layer
    while isinstance(first, nn.SequentialCell) and len(first):
        first = first[0]
    if getattr(first, "inplace", False) is True:
        for holder in kept:
            pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key in [key for key, one in pairs if one is value]:
                holder[key] = made
    return made
