"""Copies of what a forward pass changes, so that a skipped step can put it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.errors import BackendError
from mpcore_torch.ranks import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Saved = tuple[list[Any], list[torch.Tensor]]

__all__ = ["BufferGuard"]


class BufferGuard:
    """Copies of the buffers of a model, and of whatever else is guarded.

    Cost: one foreach copy of all of it, into storage made once; nothing where there is nothing.
    """

    def __init__(self, model: nn.Module, guard: Iterable[Any] = ()) -> None:
        """Guard the buffers of ``model`` and all of ``guard``.

        Raises:
            BackendError: ``guard`` holds something else than modules, tensors and containers.
        """
        found = [*_buffers(model), *(place for entry in guard for place in _places(entry))]
        self._places = list({(id(home), key): (home, key) for home, key in found}.values())
        self._copies: dict[bool, list[torch.Tensor]] = {False: [], True: []}

    def save(self, *, micro: bool = False) -> Saved:
        """Copy what is guarded and return it with its copies.

        Args:
            micro: before one micro-batch, not before the step: the copies lie apart. Each kind
                holds until the next ``save`` of that kind.
        """
        live = [home[key] for home, key in self._places]
        tensors = [local(item) for item in live if isinstance(item, torch.Tensor)]
        if not tensors:
            return live, []
        copies = self._copies[micro]
        if len(copies) != len(tensors) or not all(map(_alike, copies, tensors)):
            copies = self._copies[micro] = [torch.empty_like(item) for item in tensors]
        with torch.no_grad():
            torch._foreach_copy_(copies, tensors)
        return live, copies

    def restore(self, saved: Saved) -> None:
        """Put the values back into the tensors, and the tensors back into their places."""
        live, copies = saved
        tensors = [local(item) for item in live if isinstance(item, torch.Tensor)]
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                if not _expanded(tensor):
                    tensor.copy_(copy)
        for (home, key), original in zip(self._places, live, strict=True):
            if home[key] is not original:
                home[key] = original


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    same = one.shape == two.shape and one.dtype == two.dtype and one.device == two.device
    return bool(same)


def _buffers(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    for module in model.modules():
        for name in module._buffers:
            yield module._buffers, name


def _places(entry: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every tensor behind an entry of ``guard``."""
    if isinstance(entry, nn.Module):
        yield from _buffers(entry)
        for module in entry.modules():
            yield from ((module._parameters, name) for name in module._parameters)
    elif isinstance(entry, torch.Tensor):
        yield [entry], 0
    elif isinstance(entry, dict | list | tuple):
        for key, item in entry.items() if isinstance(entry, dict) else enumerate(entry):
            if isinstance(item, torch.Tensor) and not isinstance(entry, tuple):
                yield entry, key  # the forward pass may put another tensor there
            else:
                yield from _places(item)
    else:
        msg = (
            "`restore_on_skip` must hold modules, tensors, or lists and dicts of them, "
            f"got {type(entry).__name__}"
        )
        raise BackendError(msg)


def _expanded(tensor: torch.Tensor) -> bool:
    # Elements that share memory cannot be written in place, by a forward pass neither.
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and size > 1 for size, stride in sizes)
