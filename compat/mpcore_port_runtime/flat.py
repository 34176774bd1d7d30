"""Tensors in one vector and back, and functions over nested lists and dictionaries."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

from mindspore import ops

from mpcore_port_runtime.in_place import put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "flatten_dense_tensors",
    "parameters_to_vector",
    "tree_map",
    "unflatten_dense_tensors",
    "vector_to_parameters",
]


def flatten_dense_tensors(tensors: Iterable[Any]) -> Any:
    """Return the values of tensors behind one another, in one axis."""
    return ops.cat([one.reshape(-1) for one in tensors])


def unflatten_dense_tensors(flat: Any, tensors: Iterable[Any]) -> tuple[Any, ...]:
    """Return the parts of a vector in the shapes of ``tensors``; they are copies."""
    parts, start = [], 0
    for one in tensors:
        count = int(one.size)
        parts.append(flat[start : start + count].reshape(one.shape))
        start += count
    return tuple(parts)


def parameters_to_vector(parameters: Iterable[Any]) -> Any:
    """Return torch.nn.utils.parameters_to_vector: gradients go back to the Parameters."""
    return flatten_dense_tensors(parameters)


def vector_to_parameters(vec: Any, parameters: Iterable[Any]) -> None:
    """Give Parameters the values of a vector, in their order."""
    params = list(parameters)
    for param, values in zip(params, unflatten_dense_tensors(vec, params), strict=True):
        put(param, values)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """Return torch.utils._pytree.tree_map: nested as before, ``func`` of what is in it."""
    kind = type(tree)
    if kind in (dict, OrderedDict):
        return kind((k, tree_map(func, v, *(r[k] for r in rests))) for k, v in tree.items())
    if kind is defaultdict:
        pairs = {k: tree_map(func, v, *(r[k] for r in rests)) for k, v in tree.items()}
        return defaultdict(tree.default_factory, pairs)
    named = isinstance(tree, tuple) and hasattr(tree, "_fields")
    if kind in (list, tuple) or named:
        rows = [tree_map(func, *parts) for parts in zip(tree, *rests, strict=True)]
        return kind(*rows) if named else kind(rows)
    if kind is deque:
        rows = [tree_map(func, *parts) for parts in zip(tree, *rests, strict=True)]
        return deque(rows, maxlen=tree.maxlen)
    return func(tree, *rests)
