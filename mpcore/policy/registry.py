"""Layers whose category somebody has said, by class."""

from __future__ import annotations

from mpcore.errors import PolicyError, check_choice
from mpcore.policy.layer import CATEGORIES

__all__ = ["register_layer", "registered"]

_REGISTERED: dict[type, str] = {}


def register_layer(type: type, category: str | None) -> None:
    """Say what the layers of a class compute, in every model that is prepared from now on.

    It goes before what mpcore knows or finds out by a call, for the class and those derived
    from it; the nearest class counts. Layers inside of one that is registered are cast with it,
    as one, unless the category is ``"container"``.

    Args:
        type: the class: a torch.nn.Module, keras.Layer or mindspore.nn.Cell.
        category: one of ``mpcore.policy.layer.CATEGORIES``, such as ``"linear"`` (lowered),
            ``"norm"`` (computed in float32), or ``"other"`` (kept in float32, and that is meant);
            None takes back what was said.

    Raises:
        PolicyError: it is no class, or there is no such category.

    Examples:
        >>> class Experts: ...
        >>> register_layer(Experts, "linear")
        >>> registered(Experts)
        'linear'
        >>> register_layer(Experts, None)
    """
    if not isinstance(type, _CLASS):
        msg = f"`type` must be the class of a layer, got {type!r:.80}; pass type(layer)"
        raise PolicyError(msg)
    if category is None:
        _REGISTERED.pop(type, None)
        return
    _REGISTERED[type] = check_choice("category", category, CATEGORIES)


_CLASS = type


def registered(cls: type) -> str:
    """Return the category that was said for a class or the nearest it is derived from, or ""."""
    if not _REGISTERED:
        return ""
    return next((_REGISTERED[base] for base in cls.__mro__ if base in _REGISTERED), "")
