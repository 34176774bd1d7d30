"""The graph part of this backend: networks lifted, built anew, changed; see ``graph_export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from mpcore.graph.fold import fold_batch_norm
from mpcore.graph.part import Lifted, as_arguments, both
from mpcore.graph.timing import refuse_timing
from mpcore_mindspore.graph_export import export, refuse_prepared, source
from mpcore_mindspore.graph_plan import plan_of
from mpcore_mindspore.graph_proof import prove
from mpcore_mindspore.graph_rewritten import Rewritten
from mpcore_mindspore.graph_run import Lowering
from mpcore_mindspore.graph_source import cell_of, source_of
from mpcore_mindspore.graph_trace import eagerly
from mpcore_mindspore.layers import dtype_name, leaves, list_layers, parameter_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from mindspore import nn

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.part import Change
    from mpcore.graph.timing import Timed
    from mpcore.policy.policy import Policy

__all__ = [
    "arrays",
    "build",
    "changed",
    "export",
    "find",
    "fold",
    "lift",
    "plan",
    "source",
    "timed",
]


@eagerly()
def lift(model: nn.Cell, example: Any, /, *, whole: bool) -> Lifted:
    """Return a network as one graph; see ``mpcore.graph.part.GraphPart``."""
    del whole  # it is one graph always
    refuse_prepared(model)
    lowered = prove(model, Lowering(None, ()), *as_arguments(example))
    return Lifted((lowered.piece.graph,), model, example, lowered.piece)


def plan(lifted: Lifted, policy: Policy, /, device: str = "") -> tuple[GraphPlan, ...]:
    """Return the plan of the graph."""
    layers, where = list_layers(lifted.model), device.partition(":")[0]
    return (plan_of(lifted.handle, policy, layers, where, output=policy.output),)


def arrays(lifted: Lifted, /) -> Mapping[str, npt.NDArray[Any]]:
    """Return the values of Parameters by name; those of 16 bits as float32."""
    paths = parameter_paths(lifted.model)
    found = {}
    for param in lifted.model.get_parameters():
        low = dtype_name(param.dtype) in ("float16", "bfloat16")
        value = param.astype(ms.float32) if low else param
        found[paths.get(id(param), param.name)] = value.asnumpy().copy()
    return found


def build(lifted: Lifted, graph: Graph, new: Mapping[str, npt.NDArray[Any]], /) -> nn.Cell:
    """Return a new network of a graph; its Parameters are copies."""
    piece = lifted.handle
    held = {}
    for value in graph.values:
        if value.kind in ("param", "buffer"):
            old = piece.params.get(value.name)
            array = new[value.name] if value.name in new else old.asnumpy().copy()
            trains = value.kind == "param" and (old is None or old.requires_grad)
            tensor = Tensor(np.ascontiguousarray(array))
            held[value.name] = Parameter(tensor, name=value.name, requires_grad=trains)
    text = source_of(piece, graph, None, title=f"{type(lifted.model).__name__}, changed.")
    return cell_of(text, held).set_train(False)


def find(model: nn.Cell, path: str, /) -> Any:
    """Return the Cell or Parameter of a dotted path; None where there is none."""
    model = model.original if isinstance(model, Rewritten) else model
    if path in (cells := leaves(model)):
        return cells[path][0]
    names = parameter_paths(model)
    return next((p for p in model.get_parameters() if names.get(id(p)) == path), None)


@eagerly()
def changed(model: nn.Cell, change: Change, example: Any, /) -> nn.Cell:
    """Return a network with the Parameters of ``model`` whose graphs are changed."""
    refuse_prepared(model, rewritten=True)
    if isinstance(model, Rewritten):
        model, change = model.original, both(model.change, change)
    made = Rewritten(model, change)
    if example is not None:
        made.lift(example)
    return made


@eagerly()
def fold(model: nn.Cell, example: Any, /) -> nn.Cell:
    """Return a new network whose batch normalisations are folded; see ``GraphPart.fold``."""
    lifted = lift(model, example, whole=True)
    graph, held = fold_batch_norm(lifted.graph, arrays(lifted))
    return build(lifted, graph, held)


def timed(model: nn.Cell, policy: Policy, example: Any, /) -> tuple[Timed, ...]:
    """Raise GraphError: calls of a graph are timed one by one in torch alone."""
    del policy, example
    refuse_timing(type(model).__name__, "mindspore")
