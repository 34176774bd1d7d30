"""Kernels of a torch step, caught with what they got and timed alone in two dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from mpcore.tools.inspection.trace import widest
from mpcore.tools.profiling.timing import compared
from mpcore_torch.tap import KernelMode, dtypes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.amp.amp import Amp
    from mpcore.backend.profiler import KernelTime

__all__ = ["kernels"]


def kernels(
    amp: Amp,
    loss_fn: Callable[..., Any],
    batch: tuple[Any, ...],
    heaviest: Sequence[str],
    low: str,
) -> list[KernelTime]:
    """Run one step, catch the calls of its heaviest kernels, and time each in two dtypes.

    Args:
        amp: what was prepared; it makes a step.
        loss_fn: as for ``Amp.step``.
        batch: likewise.
        heaviest: names as ``kernel_name`` gives them.
        low: the 16-bit dtype; kernels that ran in it are timed in float32 too, others in it.
    """
    caught = _Catch(set(heaviest))
    with KernelMode(caught.kernel):
        amp.step(loss_fn, *batch)
    with torch.no_grad():
        return [
            _compared(name, *caught.calls[name], low) for name in heaviest if name in caught.calls
        ]


class _Catch:
    """Keeps copies of what wanted kernels got, the first time."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self.calls: dict[str, tuple[Any, Any, Any]] = {}

    def kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take one kernel."""
        from mpcore_torch.profile import kernel_name

        del result
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        floats = [str(t.dtype).removeprefix("torch.") for t in tensors if t.dtype.is_floating_point]
        name = kernel_name(func._schema.name, [list(t.shape) for t in tensors], floats)
        if name in self._wanted and name not in self.calls and not func._schema.is_mutable:
            # Copies: the step goes on to write into some.
            self.calls[name] = (func, *tree_map(_copied, (args, kwargs)))


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # What is expanded has one number in many places: the copy is expanded, too.
    once = value.detach()[tuple(slice(None if step else 1) for step in value.stride())]
    places = 1 + sum((n - 1) * step for n, step in zip(once.size(), once.stride(), strict=True))
    if once.numel() > places:  # windows that overlap: their layout cannot be copied
        return value.detach().clone()
    copy = torch.empty_strided(once.size(), once.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(once).expand(value.size())


def _compared(name: str, func: Any, args: Any, kwargs: Any, low: str) -> KernelTime:
    floats = dtypes_of((args, kwargs))
    dtype = floats[0] if "scaled_dot_product" in name else widest(floats)
    other = low if dtype != low else "float32"
    run = _runner(func, args, kwargs)
    rival = _runner(func, *_as_other(args, kwargs, dtype, other))
    if any(isinstance(t, torch.Tensor) and t.dtype == torch.uint8 for t in tree_leaves(args)):
        rival = _refuse  # it would read a float32 workspace from the bytes of a 16-bit one
    refusals = (RuntimeError, NotImplementedError, TypeError)
    return compared(name, (dtype, other), run, rival, refusals, _wait)


def _runner(func: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    return lambda: func(*args, **kwargs)


def _refuse() -> None:
    msg = "it goes on in a workspace that another kernel filled in its dtype"
    raise NotImplementedError(msg)


def _as_other(args: Any, kwargs: Any, dtype: str, other: str) -> tuple[Any, Any]:
    """Return arguments whose tensors of ``dtype`` are of ``other``, and dtypes that are given."""
    old, new = getattr(torch, dtype), getattr(torch, other)

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype == old:
            return value.to(new)
        return new if value is old else value

    changed: tuple[Any, Any] = tree_map(change, (args, kwargs))
    return changed


def _wait(result: Any) -> None:
    for value in tree_leaves(result):
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            torch.cuda.synchronize(value.device)
            return
