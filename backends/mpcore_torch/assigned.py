"""What a forward pass writes into parameters, seen op by op, and copied before it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpcore._lib.interrupts import Held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore_torch.buffers import Assigned

__all__ = ["PLAIN", "Watch", "compiles"]

PLAIN = (torch.Tensor, nn.Parameter)  # a shard has no values of its own to be written here


class Watch(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Copies parameters before they are written, for ``Assigned``."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let what is compiled inside be compiled."""
        return True

    def __init__(self, assigned: Assigned) -> None:
        super().__init__()
        self._assigned = assigned

    def __enter__(self) -> Any:
        assigned = self._assigned
        self._held = [(param, param.detach()) for param in assigned.params]
        self._homes: dict[int, list[nn.Parameter]] = {}
        for param, _ in self._held:
            self._homes.setdefault(_home(param), []).append(param)
        assigned.watch = self
        with Held():
            return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        with Held():
            super().__exit__(*exc)
        if self._assigned.watch is self:  # else a region outlived its step
            self.collect()
            self._assigned.watch = None
        self._held, self._homes = [], {}

    def collect(self) -> None:
        """Find ``param.data = other``; may be called again after a fault in it."""
        for param, before in self._held:
            if _home(param) != _home(before) and _alike(param, before):
                self._assigned.add(param, before.clone())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        watches = self._assigned.watch is self
        if watches and schema is not None and schema.is_mutable:
            for tensor in _written(schema, args, kwargs):
                for param in self._homes.get(_home(tensor), ()):
                    if _overlap(param, tensor):
                        self._assigned.add(param, param.detach().clone())
        return func(*args, **kwargs)


def _written(schema: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an op writes."""
    for place, entry in enumerate(schema.arguments):
        if entry.alias_info is None or not entry.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(entry.name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item


def _home(tensor: torch.Tensor) -> int:
    """Return what tells the memory of a tensor; 0 where it has none."""
    if type(tensor) not in PLAIN or tensor.layout != torch.strided:
        return 0
    return int(tensor.untyped_storage()._cdata)


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether two tensors in one piece of memory may share values."""
    (first, end), (other, other_end) = _span(one), _span(two)
    return first < other_end and other < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    size, start = tensor.element_size(), tensor.storage_offset()
    return start * size, (start + last + 1) * size


def _alike(one: torch.Tensor, two: torch.Tensor) -> bool:
    same = one.shape == two.shape and one.dtype == two.dtype and one.device == two.device
    return bool(same)


def compiles() -> bool:
    """Return whether something was handed to torch.compile in this process."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    # `None` stands for what is kept from being compiled.
    return dynamo is not None and any(map(callable, dynamo.cached_backends.values()))
