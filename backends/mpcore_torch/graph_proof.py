"""The proof of a graph: the same bits as the model on its example, and nothing left outside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpcore.errors import GraphError
from mpcore_torch.graph_run import MARK
from mpcore_torch.snapshot import left_alone

if TYPE_CHECKING:
    from mpcore_torch.graph_run import Runner

__all__ = ["outside", "prove_lifted", "prove_same"]

_QUIET = frozenset(
    f"aten::{name}"  # what decides for Python, and what makes room
    for name in (
        *("item", "_local_scalar_dense", "is_nonzero", "empty", "empty_strided", "detach"),
        *("detach_", "result_type", "resize_", "zeros", "fill_", "zero_", "lift_fresh", "alias"),
    )
)


def prove_lifted(
    model: nn.Module, runner: Runner, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise GraphError unless the graphs are all of the model, and give its bits.

    Args:
        model: the model, not changed.
        runner: runs its graphs without casts.
        args: arguments of the example.
        kwargs: the others.
    """
    prove_same(model, runner, args, kwargs)
    name = type(model).__name__
    if not runner.pieces:
        msg = (
            f"nothing of {name} was lifted: it makes no call that torch._dynamo follows; use "
            "by='op' or by='layer'"
        )
        raise GraphError(msg)
    left = outside(model, runner, args, kwargs)
    if left:
        msg = (
            f"{', '.join(left[:3])} of {name} ran outside of every graph, where no plan reaches; "
            "use by='op' or by='layer'"
        )
        raise GraphError(msg)


def prove_same(
    model: nn.Module,
    runner: Runner,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    region: tuple[str, torch.dtype] | None = None,
) -> None:
    """Raise GraphError unless the graphs give the bits of the model on its example.

    Args:
        model: the model, not changed yet.
        runner: runs its graphs.
        args: arguments of the example.
        kwargs: the others.
        region: device and dtype of the autocast region that the model itself runs in; None for
            none.
    """
    with left_alone(model, None), _region(region):
        expected = model(*args, **kwargs)
    with left_alone(model, None):
        found = runner(*args, **kwargs)
    if _same(expected, found):
        return
    first = _first_difference(model, runner, args, kwargs, region)
    if region is None:
        msg = (
            f"the graph of {type(model).__name__} does not give its own bits; {first}. A forward "
            "pass that depends on what an earlier one left (a count, a cache) cannot be lifted: "
            "use by='op' or by='layer'"
        )
    else:
        msg = (
            f"the graph of {type(model).__name__} does not give the bits of autocast; {first}. "
            "Code that asks for the dtype of a tensor is lifted in float32: name the op in a rule, "
            "or use by='op'"
        )
    raise GraphError(msg)


def _region(region: tuple[str, torch.dtype] | None) -> Any:
    return contextlib.nullcontext() if region is None else torch.autocast(*region)


def _same(expected: Any, found: Any) -> bool:
    one, other = tree_leaves(expected), tree_leaves(found)
    return len(one) == len(other) and all(
        _equal(a, b) for a, b in zip(one, other, strict=True) if isinstance(a, torch.Tensor)
    )


def _equal(a: torch.Tensor, b: Any) -> bool:
    if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(
        torch.equal(a, b)
        or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
    )


class _Kernels(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Notes what every kernel made, but for views and casts, and which call ran it."""

    def __init__(self, at: list[str]) -> None:
        super().__init__()
        self.at = at
        self.made: list[tuple[str, Any, str]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func`` and note its first result."""
        result = func(*args, **(kwargs or {}))
        first = next((r for r in tree_leaves(result) if isinstance(r, torch.Tensor)), None)
        name = str(func.name())
        aliases = any(r.alias_info is not None for r in func._schema.returns)
        room = name.partition(".")[0] in _QUIET
        if first is not None and not aliases and not room and name != "aten::_to_copy":
            self.made.append((name, first.detach().clone(), self.at[-1] if self.at else ""))
        return result


def _first_difference(
    model: nn.Module,
    runner: Runner,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    region: tuple[str, torch.dtype] | None,
) -> str:
    """Return in words which call is the first whose kernel made something else."""
    own, at = _Kernels([]), [""]
    with left_alone(model, None), _region(region), own:
        model(*args, **kwargs)
    graph, runner.at = _Kernels(at), at
    try:
        with left_alone(model, None), graph:
            runner(*args, **kwargs)
    finally:
        runner.at = None
    for mine, theirs in zip(own.made, graph.made, strict=False):
        if mine[0] != theirs[0] or not _equal(mine[1], theirs[1]):
            return f"the first call that differs is {theirs[2]!r} ({theirs[0]})"
    return f"its {len(own.made)} kernels became {len(graph.made)}"


def outside(
    model: nn.Module, runner: Runner, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Return the functions that computed outside of every graph, by name."""
    with left_alone(model, None):
        runner.marks = True
        try:
            with torch.autograd.profiler.profile(use_kineto=False) as whole:
                runner(*args, **kwargs)
        finally:
            runner.marks = False
    events = whole.function_events
    graphs = [e.time_range for e in events if e.name == MARK]
    return sorted(
        {
            event.name
            for event in events
            if event.name.startswith("aten::")
            and event.name not in _QUIET
            and not any(g.start <= event.time_range.start <= g.end for g in graphs)
        }
    )
