"""What a torch model casts in a step, and keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Casts(TorchDispatchMode):
    """Counts the casts between float32 and bfloat16 that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if (
            func is torch.ops.aten._to_copy.default
            and {made.dtype, args[0].dtype} <= {torch.float32, torch.bfloat16}
            and made.dtype != args[0].dtype
        ):
            self.calls += 1
            self.elements += made.numel()
        return made


class Counted(NamedTuple):
    """Casts of the forward pass and of a step, elements of the step, MiB kept for the backward."""

    forward: int
    step: int
    elements: int
    kept: float


def counted(model: torch.nn.Module, run: Callable[[], Any], loss: Callable[[Any], Any]) -> Counted:
    """Return what one step casts and keeps; the casts of ``loss`` itself are left out."""
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(t: Any) -> Any:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        with Casts() as forward:
            out = run()
        total = loss(out)
    with Casts() as backward:
        total.backward()
    size = sum(kept.values()) / 2**20
    calls = forward.calls + backward.calls
    return Counted(forward.calls, calls, forward.elements + backward.elements, size)
