"""by="graph": the construct of a network replaced by its graphs, once these proved themselves."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from mpcore._lib.callers import warn_user
from mpcore.errors import BackendError
from mpcore.graph.deciding import unused_rules
from mpcore.graph.part import as_arguments
from mpcore_mindspore.graph_compiled import ByGraph
from mpcore_mindspore.graph_proof import check_runs, prove
from mpcore_mindspore.graph_run import Lowering, Runner
from mpcore_mindspore.graph_trace import Arguments, eagerly, flags_of
from mpcore_mindspore.layers import dtype_name, list_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mindspore import nn

    from mpcore.graph.ir import GraphPlan
    from mpcore.policy.policy import Policy

__all__ = ["proved", "put_flags"]


@eagerly()
def proved(
    net: nn.Cell, policy: Policy, example: Any, native: frozenset[str]
) -> tuple[Callable[[nn.Cell], None], list[GraphPlan]]:
    """Return what lets a network run by its graphs, and the plans of those, as they come.

    The example is run, in training and for inference, without casts: outputs, assigned buffers
    and gradients must be the network's own.

    Raises:
        BackendError: by="graph" cannot carry what the network is.
        GraphError: it cannot be lifted, or something differs, with the first Cell that does.
    """
    low = [p.name for p in net.get_parameters() if dtype_name(p.dtype) in ("float16", "bfloat16")]
    if low:
        msg = (
            f"by='graph' needs a network of float32 parameters, {low[0]} has 16 bits; make it "
            "float32, or use by='layer'"
        )
        raise BackendError(msg)
    if policy.compute != "float32" and policy.compute not in native:
        msg = (
            f"by='graph' needs a dtype that the device computes in, {policy.compute} is imitated "
            "here; use float16, or by='layer'"
        )
        raise BackendError(msg)
    args, kwargs = as_arguments(example)
    layers = list_layers(net)
    lowering, plain = Lowering(policy, layers), Lowering(None, layers)
    runner, before = Runner(net, lowering), flags_of(net)
    try:
        for mode in (None, not net.training):
            if mode is not None:
                net.set_train(mode)
            lowered = prove(net, plain, args, kwargs)
            arguments = Arguments(net, args, kwargs)
            made = lowering(lowered.piece)
            check_runs(net, made, arguments)
            runner.met[runner.key(arguments)] = made
    finally:
        put_flags(net, before)
    for rule in unused_rules(policy, lowering.plans):
        msg = f"rule {rule!r} decided for no call of the graph; print(amp.graphs[0]) lists them"
        warn_user(msg, "mindspore")

    by_graph = ByGraph(runner)

    def construct(self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
        return by_graph(*args, **kwargs)

    construct.by_graph = True  # type: ignore[attr-defined]

    def put(net: nn.Cell) -> None:
        net.construct = types.MethodType(construct, net)

    return put, lowering.plans


def put_flags(net: nn.Cell, flags: tuple[bool, ...]) -> None:
    """Let each Cell train, or not, as ``flags_of`` has said."""
    for (_, cell), flag in zip(net.cells_and_names(), flags, strict=True):
        if cell.training != flag:
            cell.set_train(flag)  # with what is inside of it, which comes later
