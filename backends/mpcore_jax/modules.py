"""What an nnx model is made of: its layers and their variables, in the order of definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx

from mpcore.policy.layer import NOT_KNOWN, Layer, ParamInfo
from mpcore.policy.registry import registered

if TYPE_CHECKING:
    from collections.abc import Iterator

    Variables = dict[str, nnx.Variable[Any]]

__all__ = ["below", "dtype_name", "layers", "list_layers", "nodes", "variables"]

_KINDS = {
    "linear": "Linear LinearGeneral Einsum LoRA",
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "attention": "MultiHeadAttention",
    "embedding": "Embed",
    "norm": "BatchNorm LayerNorm RMSNorm GroupNorm InstanceNorm WeightNorm SpectralNorm",
    "dropout": "Dropout",
    "activation": "PReLU",
    "recurrent": "RNN Bidirectional RNNCellBase",
}
_CATEGORIES = {getattr(nnx, n): kind for kind, names in _KINDS.items() for n in names.split()}
"""Layers that flax brings. What is inside of one is cast with it, as one."""


def layers(model: nnx.Module) -> Iterator[tuple[str, Any, str]]:
    """Yield (path, layer, category) of the model and all in it; ``""`` is the model itself.

    A layer that is used twice comes once. A category of ``""`` is one that nothing tells.
    """
    seen: set[int] = set()

    def walk(path: str, node: Any) -> Iterator[tuple[str, Any, str]]:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, nnx.Module):
            kind = _category(node)
            yield path, node, "container" if not path else kind
            if kind not in ("container", "") and path:
                return
        for name, child in _children(node):
            yield from walk(f"{path}.{name}" if path else name, child)

    yield from walk("", model)


def _category(layer: nnx.Module) -> str:
    said = registered(type(layer))
    if said:
        return said
    for base in type(layer).__mro__:
        if base in _CATEGORIES:
            return _CATEGORIES[base]
    own = any(isinstance(child, nnx.Variable) for _, child in _children(layer))
    return "" if own or not any(_modules(layer)) else "container"


def _modules(node: Any) -> Iterator[Any]:
    for _, child in _children(node):
        if isinstance(child, nnx.Module):
            yield child
        elif not isinstance(child, nnx.Variable):
            yield from _modules(child)


def _children(node: Any) -> list[tuple[str, Any]]:
    """Return what a node of the graph holds that is a node or a variable."""
    if isinstance(node, dict):
        items = [(str(name), child) for name, child in node.items()]
    elif isinstance(node, list | tuple):
        items = [(str(number), child) for number, child in enumerate(node)]
    elif isinstance(node, nnx.Pytree):
        items = [(n, c) for n, c in vars(node).items() if not n.startswith("_pytree__")]
    else:
        return []
    inside = (nnx.Variable, nnx.Pytree, dict, list, tuple)
    return [(name, child) for name, child in items if isinstance(child, inside)]


def variables(node: Any, path: str = "") -> Variables:
    """Return every variable in a model by its path, each once, in the order of definition."""
    found: Variables = {}
    seen: set[int] = set()

    def walk(path: str, node: Any) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, nnx.Variable):
            found[path] = node
            return
        for name, child in _children(node):
            walk(f"{path}.{name}" if path else name, child)

    walk(path, node)
    return found


def nodes(model: Any) -> list[nnx.Pytree]:
    """Return every node of a model's graph that holds attributes, each once."""
    found = [node for _, node in nnx.iter_graph(model)]
    return [node for node in found if isinstance(node, nnx.Pytree)]


def below(layer: Any) -> list[nnx.Variable[Any]]:
    """Return the parameters that are cast with a layer."""
    return [v for v in variables(layer).values() if isinstance(v, nnx.Param) and _is_float(v)]


def _is_float(variable: nnx.Variable[Any]) -> bool:
    return bool(jnp.issubdtype(variable.get_raw_value().dtype, jnp.floating))


def list_layers(model: nnx.Module) -> list[Layer]:
    """Return the layers in the form that a policy is resolved over."""
    found = []
    for path, layer, category in layers(model):
        owned = {} if category == "container" else variables(layer)
        if not category:  # what is below has its own entry
            owned = {n: v for n, v in owned.items() if "." not in n}
        params = tuple(
            ParamInfo(name, tuple(v.shape), dtype_name(v.get_raw_value().dtype))
            for name, v in owned.items()
            if isinstance(v, nnx.Param)
        )
        own = getattr(layer, "dtype", None)
        found.append(
            Layer(
                path,
                category or "other",
                type(layer).__name__,
                params,
                own=dtype_name(own) if own is not None and category != "container" else "",
                unknown="" if category or not params else NOT_KNOWN,
            )
        )
    return found


def dtype_name(dtype: Any) -> str:
    """Return the neutral name of a dtype, as "bfloat16"."""
    return str(jnp.dtype(dtype).name)
