"""What people call: a model lifted to a graph, changed there, and built again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import find_backend
from mpcore.errors import GraphError
from mpcore.graph import clip
from mpcore.graph.part import GRAPH
from mpcore.graph.pattern import match
from mpcore.policy.policy import Policy

if TYPE_CHECKING:
    from os import PathLike

    from mpcore.graph.part import Changed, Exported, GraphPart, Lifted
    from mpcore.graph.pattern import Chain
    from mpcore.graph.timing import Timed

__all__ = ["clip_gradient", "export", "fold_batch_norm", "lift", "source", "time_graph"]


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
    return _part(model, example).fold(model, example)


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

    def change(given: Changed) -> Changed:
        nonlocal matched
        nodes = [found.last for found in match(pattern, given.graph)]
        if not nodes:
            return given
        matched += len(nodes)
        clipped = clip.clip_gradient(given.graph, nodes, norm=norm, value=value)
        return replace(given, graph=clipped)

    clipped = _part(model, example).changed(model, change, example)
    if not matched:
        clip.refuse_none()
    return clipped


def export(model: Any, path: str | PathLike[str], policy: Policy | str, *example: Any) -> Exported:
    """Write a model to a file in which the policy stands as casts that anybody can see.

    Args:
        model: the model; it stays as it is.
        path: its ending says the form: ``.onnx`` or ``.pt2`` of a torch model, ``.mindir`` of a
            network of MindSpore; of a Keras model a new folder, for a SavedModel.
        policy: what is lowered; a system may be named by ``"op_list=portable"``.
        example: what the model is called with.

    Returns:
        What was checked: casts, the largest difference from the model, and by what.

    Raises:
        GraphError: it cannot be written so; the message says why.
    """
    return _part(model, example).export(model, path, Policy.of(policy), example)


def source(model: Any, policy: Policy | str, *example: Any) -> str:
    """Return MindSpore source of a network in which the policy stands as casts.

    Its class is made of the network's Parameters by name. Nothing stays written anywhere.

    Args:
        model: a network of MindSpore, in the mode that is meant; it stays as it is.
        policy: what is lowered.
        example: what the network is called with.

    Raises:
        GraphError: it cannot be lifted, or the source did not give the bits of by="graph".
    """
    return _part(model, example).source(model, Policy.of(policy), example)


def time_graph(model: Any, policy: Policy | str, *example: Any) -> tuple[Timed, ...]:
    """Return what each call and cast of by="graph" takes, each run alone; changes nothing.

    Args:
        model: a model of a framework whose backend times calls.
        policy: what is lowered.
        example: what the model is called with.

    Raises:
        GraphError: it cannot be lifted, or the backend times no calls.
    """
    return _part(model, example).timed(model, Policy.of(policy), example)


def _part(model: Any, example: tuple[Any, ...]) -> GraphPart:
    if not example:
        msg = "`example` must be what the model is called with, got nothing"
        raise GraphError(msg)
    return GRAPH.of(find_backend(model))
