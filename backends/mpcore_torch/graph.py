"""The graph part of this backend: models lifted, built anew, changed; see ``graph_export``."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mpcore.graph.fold import fold_batch_norm
from mpcore.graph.part import Lifted, as_arguments, both, refuse_after_prepare, refuse_source
from mpcore_torch.forwards import put_method
from mpcore_torch.graph_build import build as build_piece
from mpcore_torch.graph_export import export, exported_piece
from mpcore_torch.graph_forward import (
    Lowering,
    change_of,
    refuse_lifting,
    run_by_graph,
    runner_for,
)
from mpcore_torch.graph_plan import plan_of
from mpcore_torch.graph_proof import prove_lifted
from mpcore_torch.graph_time import timed
from mpcore_torch.layers import device_of, list_layers
from mpcore_torch.refuse import refuse_prepared
from mpcore_torch.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mpcore.graph.ir import Graph, GraphPlan
    from mpcore.graph.part import Change
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


def lift(model: nn.Module, example: Any, /, *, whole: bool) -> Lifted:
    """Return a model as graphs; see ``mpcore.graph.part.GraphPart``."""
    _refuse_prepared(model)
    refuse_lifting(model)
    if whole:
        piece, made = exported_piece(model, example)
        return Lifted((piece.graph,), model, example, (piece, made))
    args, kwargs = as_arguments(example)
    lowering = Lowering(None, (), device_of(model).type)
    runner = runner_for(model, type(model).forward, lowering)
    with left_alone(model, None):
        prove_lifted(model, runner, args, kwargs)
    return Lifted(tuple(p.graph for p in runner.pieces), model, example, tuple(runner.pieces))


def plan(lifted: Lifted, policy: Policy, /, device: str = "") -> tuple[GraphPlan, ...]:
    """Return the plan of each graph."""
    layers = list_layers(lifted.model)
    where = device.partition(":")[0] or device_of(lifted.model).type
    whole = policy.output if len(lifted.handle) == 1 else ""
    return tuple(plan_of(p, policy, layers, where, output=whole) for p in lifted.handle)


def arrays(lifted: Lifted, /) -> Mapping[str, npt.NDArray[Any]]:
    """Return the values of parameters and buffers by name; those of 16 bits as float32."""
    model = lifted.model
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {
        name: (t.float() if t.is_floating_point() else t).detach().cpu().numpy()
        for name, t in named
    }


def build(lifted: Lifted, graph: Graph, new: Mapping[str, npt.NDArray[Any]], /) -> nn.Module:
    """Return a new model of a whole graph; its parameters are copies."""
    piece, made = lifted.handle
    held = {
        name: nn.Parameter(torch.from_numpy(array).to(device_of(lifted.model)))
        for name, array in new.items()
    }
    # A copy of what is still read; the names of the rest say that they are no arguments.
    own = {
        name: copy.deepcopy(t) if name in graph.value else None
        for name, t in piece.constants.items()
    }
    module = build_piece(replace(piece, constants=own), graph, new=held)
    module.graph._codegen = made.graph._codegen  # arguments as the model takes them
    module.recompile()
    return module.eval()


def find(model: nn.Module, path: str, /) -> Any:
    """Return the module, parameter or buffer of a dotted path; None where there is none."""
    home: Any = model
    for part in path.split(".") if path else ():
        home = home[int(part)] if part.isdigit() else getattr(home, part, None)
        if home is None:
            return None
    return home


def changed(model: nn.Module, change: Change, example: Any, /) -> nn.Module:
    """Return a copy that shares the parameters of ``model``, and whose graphs are changed."""
    _refuse_prepared(model)
    refuse_lifting(model, but=model)
    change = both(change_of(model), change)
    shared = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    # Not as what `prepare` puts there: this model may still be prepared.
    put_method(twin, "forward", run_by_graph(type(twin).forward, None, change))
    if example is not None:
        args, kwargs = as_arguments(example)
        with left_alone(twin, None):
            twin(*args, **kwargs)
    return twin


def _refuse_prepared(model: nn.Module) -> None:
    try:
        refuse_prepared(model)
    except RuntimeError:
        refuse_after_prepare(model)


def source(model: nn.Module, policy: Policy, example: Any, /) -> str:
    """Raise GraphError: source is written of networks of MindSpore alone."""
    del example
    instead = "writes it to a .pt2 file, whose graph prints itself as code"
    refuse_source(model, "torch", policy, instead)


def fold(model: nn.Module, example: Any, /) -> nn.Module:
    """Return a new model whose batch normalisations are folded; see ``GraphPart.fold``."""
    lifted = lift(model, example, whole=True)
    graph, held = fold_batch_norm(lifted.graph, arrays(lifted))
    return build(lifted, graph, held)
