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
    if isinstance(layer, nn.SequentialCell) and _begins_in_place(layer):
        for place, one in enumerate(layer):
            value = one(value) if place else through(one, value, *kept)
        return value
    made = layer(value)
    if _begins_in_place(layer):
        for holder in kept:
            pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key in [key for key, one in pairs if one is value]:
                holder[key] = made
    return made


def _begins_in_place(layer: Any) -> bool:
    while isinstance(layer, nn.SequentialCell) and len(layer):
        layer = layer[0]
    return getattr(layer, "inplace", False) is True
