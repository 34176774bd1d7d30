"""What people call: a model lifted to a graph, changed there, and built again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import find_backend
from mpcore.errors import GraphError
from mpcore.graph import clip, fold
from mpcore.graph.part import GRAPH
from mpcore.graph.pattern import match
from mpcore.policy.policy import Policy

if TYPE_CHECKING:
    from os import PathLike

    from mpcore.graph.ir import Graph
    from mpcore.graph.part import Exported, GraphPart, Lifted
    from mpcore.graph.pattern import Chain

__all__ = ["clip_gradient", "export", "fold_batch_norm", "lift"]


def lift(model: Any, *example: Any) -> Lifted:
    """Return ``model`` as a graph: every call, every value between them, with names.

    Args:
        model: a model of a framework whose backend lifts; in the mode that is meant.
        example: what it is called with.

    Raises:
        GraphError: it cannot be lifted; the message names the call.
    """
    return _part(model, example).lift(model, example, whole=False)


def fold_batch_norm(model: Any, *example: Any) -> Any:
    """Return a new model whose batch normalisations are folded into the layers before them.

    For inference. The weights are copies, ``model`` stays as it is; a call is left alone where
    its normalisation cannot be folded.

    Raises:
        GraphError: nothing folds; the message says why.
    """
    part = _part(model, example)
    lifted = part.lift(model, example, whole=True)
    graph, arrays = fold.fold_batch_norm(lifted.graph, part.arrays(lifted))
    return part.build(lifted, graph, arrays)


def clip_gradient(
    model: Any,
    pattern: Chain,
    *example: Any,
    norm: float | None = None,
    value: float | None = None,
) -> Any:
    """Return a model that clips the gradient of what the last call of ``pattern`` makes.

    The forward pass keeps its bits; the parameters are those of ``model``, which stays as it is.
    The bound holds for the gradients of the loss as it is, also under a loss scale.

    Raises:
        GraphError: the pattern matches nothing, or the bound is no positive number.
    """
    clip.check_bound(norm, value)
    matched = 0

    def change(graph: Graph) -> Graph:
        nonlocal matched
        nodes = [found.last for found in match(pattern, graph)]
        matched += len(nodes)
        return clip.clip_gradient(graph, nodes, norm=norm, value=value) if nodes else graph

    clipped = _part(model, example).changed(model, change, example)
    if not matched:
        clip.refuse_none()
    return clipped


def export(model: Any, path: str | PathLike[str], policy: Policy | str, *example: Any) -> Exported:
    """Write a model to a file in which the policy stands as casts that anybody can see.

    Args:
        model: the model; it stays as it is.
        path: its ending says the form: ``.onnx`` or ``.pt2`` of a torch model; of a Keras model a
            new folder, for a SavedModel.
        policy: what is lowered; a system may be named by ``"op_list=portable"``.
        example: what the model is called with.

    Returns:
        What was checked: casts, the largest difference from the model, and by what.

    Raises:
        GraphError: it cannot be written so; the message says why.
    """
    return _part(model, example).export(model, path, Policy.of(policy), example)


def _part(model: Any, example: tuple[Any, ...]) -> GraphPart:
    if not example:
        msg = "`example` must be what the model is called with, got nothing"
        raise GraphError(msg)
    return GRAPH.of(find_backend(model))
