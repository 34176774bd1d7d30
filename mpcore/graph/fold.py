"""A batch normalisation folded into the convolution or linear layer before it: for inference.

Each call is folded with weights of its own, so that a layer that is called twice, with another
normalisation behind each call, stays right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import GraphError
from mpcore.graph.edit import remove, replace_node
from mpcore.graph.ir import Value, unique
from mpcore.graph.pattern import Opt, P, match

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mpcore.graph.ir import Graph, Node

    Array = npt.NDArray[Any]

__all__ = ["fold_batch_norm", "folded_weights"]

_FOLDS = P("conv?d", label="product") | P("linear") | P("conv_transpose") | P("depthwise_conv2d")
_PATTERN = _FOLDS >> Opt("bias_add", label="bias") >> P("batch_norm", label="norm")


def fold_batch_norm(graph: Graph, arrays: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """Return a graph without the batch normalisations that fold, and the new weights by name.

    Args:
        graph: the graph.
        arrays: values of the parameters and buffers, by name.

    Raises:
        GraphError: nothing folds; the message says why for the first candidate.
    """
    new: dict[str, Array] = {}
    found = [
        (m["product"], m["bias"].name if "bias" in m else "", m["norm"])
        for m in match(_PATTERN, graph)
    ]
    refused = [why for product, _, norm in found if (why := _refusal(norm) or _grouped(product))]
    for product, bias, norm in found:
        if not _refusal(norm) and not _grouped(product):
            now = graph.node  # an earlier fold may have changed what they read
            known = {**arrays, **new}
            graph = _fold(graph, now[product.name], bias, now[norm.name], known, new)
    if not new:
        raise GraphError(refused[0] if refused else _why_none(graph))
    return graph, new


def folded_weights(
    weight: Array,
    bias: Array | None,
    mean: Array,
    variance: Array,
    scale: Array | None,
    shift: Array | None,
    epsilon: float,
    axis: int,
) -> tuple[Array, Array]:
    """Return weight and bias that do both steps; computed in float64, rounded once.

    Args:
        weight: of the product.
        bias: of the product; None for none.
        mean: running mean of the normalisation.
        variance: its running variance.
        scale: its weight; None for one.
        shift: its bias; None for zero.
        epsilon: what it adds to the variance.
        axis: dimension of the weight that the channels of the output are.
    """
    factor = 1.0 / np.sqrt(variance.astype(np.float64) + epsilon)
    if scale is not None:
        factor = factor * scale
    shape = [1] * weight.ndim
    shape[axis] = -1
    start = np.zeros_like(factor) if bias is None else bias.astype(np.float64)
    moved = (start - mean) * factor + (0.0 if shift is None else shift)
    return (weight * factor.reshape(shape)).astype(weight.dtype), moved.astype(weight.dtype)


def _refusal(norm: Node) -> str:
    if norm.settings.get("training"):
        return (
            f"{norm.name!r} must not be folded while it trains: its statistics are those of each "
            "batch; call model.eval() first"
        )
    if norm.role("running_mean") is None or norm.role("running_var") is None:
        return f"{norm.name!r} must not be folded: it has no running statistics"
    return ""


def _grouped(product: Node) -> str:
    if product.op == "conv_transpose" and product.settings.get("groups", 1) != 1:
        return f"{product.name!r} must not be folded: a transposed convolution in groups"
    return ""


def _why_none(graph: Graph) -> str:
    norms = [node for node in graph.nodes if node.op == "batch_norm"]
    if not norms:
        return "`model` has no batch normalisation to fold"
    norm = norms[0]
    if refusal := _refusal(norm):
        return refusal
    before = graph.producer.get(norm.inputs[0])
    name = before.name if before is not None else norm.inputs[0]
    users = [user.name for user in graph.users[norm.inputs[0]]]
    if len(users) > 1:
        return f"{norm.name!r} must not be folded: {name!r} is read by {', '.join(users)} too"
    return f"{norm.name!r} must not be folded: {name!r} before it is no convolution or linear layer"


def _fold(
    graph: Graph,
    product: Node,
    bias: str,
    norm: Node,
    arrays: Mapping[str, Array],
    new: dict[str, Array],
) -> Graph:
    """Fold one; ``bias`` names the call that adds the product's bias, where that is a call."""

    def read(node: Node, role: str) -> Array | None:
        name = node.role(role)
        return None if name is None else arrays[name]

    weight = arrays[str(product.role("weight"))]
    transposed = product.op == "conv_transpose"
    folded = folded_weights(
        weight,
        read(graph.node[bias] if bias else product, "bias"),
        arrays[str(norm.role("running_mean"))],
        arrays[str(norm.role("running_var"))],
        read(norm, "weight"),
        read(norm, "bias"),
        float(norm.settings.get("eps", 1e-5)),
        1 if transposed else 0,
    )
    stem = f"{product.path}." if product.path else ""
    names, values = {}, list(graph.values)
    for part, array in zip(("weight", "bias"), folded, strict=True):
        name = unique(f"{stem}{part}", {*arrays, *(value.name for value in values)})
        names[part], new[name] = name, array
        values.append(Value(name, array.shape, str(array.dtype), "param"))
    inputs = dict(zip(product.roles, product.inputs, strict=True)) | names
    changed = replace(product, inputs=tuple(inputs.values()), roles=tuple(inputs))
    graph = graph.changed(values=tuple(values), inputs=(*graph.inputs, *names.values()))
    graph = remove(replace_node(graph, product.name, changed), norm.name)
    return _unread(remove(graph, bias) if bias else graph)


def _unread(graph: Graph) -> Graph:
    """Return the graph without parameters and buffers that nobody reads any more."""
    dead = {
        value.name
        for value in graph.values
        if value.kind in ("param", "buffer")
        and not graph.users[value.name]
        and value.name not in graph.outputs
    }
    return graph.changed(
        values=tuple(value for value in graph.values if value.name not in dead),
        inputs=tuple(name for name in graph.inputs if name not in dead),
    )
