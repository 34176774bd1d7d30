"""Layers that run in the dtypes of a plan: each is given a class of its own for as long.

nnx calls ``type(layer).__call__`` and carries the class through split, merge and every transform,
so a subclass that casts and then calls its base is the layer wherever it goes; a compiled step pays
nothing for it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mpcore_jax.modules import below, layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.policy.plan import Plan

__all__ = ["apply_plan", "cast", "set_value"]


def apply_plan(model: nnx.Module, plan: Plan) -> Callable[[], None]:
    """Let each layer run as the plan says; return what takes that back."""
    undo: list[tuple[Any, str, Any]] = []
    entries = {entry.path: entry for entry in plan.layers}
    for path, layer, _ in list(layers(model)):
        entry = entries[path]
        if (entry.compute, entry.output) == ("follow", "follow"):
            continue
        undo.append((layer, "__class__", type(layer)))
        object.__setattr__(
            layer, "__class__", _casting(layer.__class__, entry.compute, entry.output)
        )
        if entry.category == "recurrent" and entry.compute != "follow":
            for cell in [n for _, n in nnx.iter_graph(layer) if isinstance(n, nnx.RNNCellBase)]:
                undo.append((cell, "param_dtype", cell.param_dtype))  # that of its first state
                object.__setattr__(cell, "param_dtype", jnp.dtype(entry.compute))

    def take_back() -> None:
        while undo:
            object.__setattr__(*undo.pop())

    return take_back


@cache
def _casting(base: Any, compute: str, output: str) -> Any:
    """Return a subclass of ``base`` that computes and hands on in these dtypes."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if compute == "follow":
            return cast(base.__call__(self, *args, **kwargs), output)
        args, kwargs = cast((args, kwargs), compute)
        params = [(param, param.get_raw_value()) for param in below(self)]
        own = vars(self).get("dtype")
        try:
            for param, value in params:
                set_value(param, value.astype(compute))
            if own is not None:  # flax casts to it by itself
                object.__setattr__(self, "dtype", jnp.dtype(compute))
            made = base.__call__(self, *args, **kwargs)
        finally:
            for param, value in params:
                set_value(param, value)
            if own is not None:
                object.__setattr__(self, "dtype", own)
        return cast(made, output)

    body = {"__call__": __call__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base)(base.__name__, (base,), {**body, "__doc__": base.__doc__})


def cast(tree: Any, dtype: str) -> Any:
    """Return float arrays of a tree in ``dtype``; "follow" changes nothing."""
    if dtype == "follow":
        return tree

    def one(value: Any) -> Any:
        floats = isinstance(value, jax.Array | np.ndarray) and jnp.issubdtype(
            value.dtype, jnp.floating
        )
        return jnp.asarray(value, dtype) if floats else value

    # A module among the arguments, such as rngs, is not to be copied.
    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, nnx.Pytree | nnx.Variable))


def set_value(variable: nnx.Variable[Any], value: Any, trace: Any = None) -> None:
    """Let a variable stand for ``value``, also where flax sees another trace than its own.

    flax forbids that so that no tracer stays in a variable behind a trace; whoever calls this puts
    the value before back.

    Args:
        variable: any.
        value: an array or tracer.
        trace: state of the trace that the variable is to belong to from now on; None keeps it.
    """
    object.__setattr__(variable, "_raw_value", value)
    if trace is not None:
        object.__setattr__(variable, "_trace_state", trace)
