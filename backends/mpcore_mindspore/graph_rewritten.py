"""A network that runs the changed graphs of another one, over the same Parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import nn

from mpcore.errors import BackendError
from mpcore.graph.clip import CLIP
from mpcore.graph.edit import by_new_names
from mpcore.graph.part import Changed, as_arguments
from mpcore_mindspore.graph_compiled import ByGraph
from mpcore_mindspore.graph_plan import plan_of_words
from mpcore_mindspore.graph_proof import check_runs, prove
from mpcore_mindspore.graph_run import Lowered, Lowering, Runner
from mpcore_mindspore.graph_source import cell_of, source_of
from mpcore_mindspore.graph_trace import Arguments, eagerly

if TYPE_CHECKING:
    from mpcore.graph.part import Change
    from mpcore.policy.plan import Plan
    from mpcore_mindspore.graph_lift import Piece

__all__ = ["Rewritten", "any_rewritten", "check_rewritten"]


class Rewritten(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    """Runs the graphs of ``original``, changed; trains its Parameters.

    Each kind of call (its shapes, training or not) is lifted and changed when it first comes.
    """

    def __init__(self, original: nn.Cell, change: Change) -> None:
        """Take a network, which stays as it is, and what becomes of each of its graphs."""
        super().__init__(auto_prefix=False)
        self.original = original
        self.training = original.training
        clips: list[str] = []

        def lower(piece: Piece) -> Lowered:
            made = change(Changed(piece.graph))
            clips.extend(node.name for node in made.graph.nodes if node.target == CLIP)
            plan = plan_of_words(made) if made.words else None
            calls = by_new_names(piece.calls, piece.graph, made.graph)
            piece = replace(piece, calls=calls)
            text = source_of(piece, made.graph, plan)
            return Lowered(piece, plan, text, cell_of(text, piece.params), made.graph)

        # Not as members of a Cell, which keeps what it is given.
        object.__setattr__(self, "clips", clips)
        object.__setattr__(self, "change", change)
        object.__setattr__(self, "runner", Runner(original, lower))
        object.__setattr__(self, "by_graph", ByGraph(self.runner))

    def lift(self, example: Any) -> None:
        """Lift and change the graph of an example, once that of the original has proved itself."""
        args, kwargs = as_arguments(example)
        with eagerly():
            prove(self.original, Lowering(None, ()), args, kwargs)
            arguments = Arguments(self.original, args, kwargs)
            check_runs(self.original, self.runner.lowered(arguments), arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network; in GRAPH_MODE its graph is lifted before it is compiled."""
        if ms.get_context("mode") != ms.PYNATIVE_MODE:
            with eagerly():
                self.runner.lowered(Arguments(self.original, args, kwargs))
        return super().__call__(*args, **kwargs)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for this call."""
        return self.by_graph(*args, **kwargs)


def any_rewritten(net: nn.Cell) -> bool:
    """Return whether a network is, or holds, a rewritten one."""
    return any(isinstance(cell, Rewritten) for _, cell in net.cells_and_names())


def check_rewritten(net: nn.Cell, plan: Plan) -> None:
    """Raise BackendError where a policy would not reach, or would scale, what a graph runs."""
    made = [cell for _, cell in net.cells_and_names() if isinstance(cell, Rewritten)]
    if not made:
        return
    if plan.policy.compute != "float32":
        msg = (
            "`policy` must be float32 for a rewritten network, whose graph runs no Cells, got "
            f"{plan.policy.compute}; let the rewriting lower it: node.to_float, "
            "MixedPrecisionHelper"
        )
        raise BackendError(msg)
    if any(cell.clips for cell in made) and plan.policy.scaling.kind != "none":
        msg = (
            "`policy` must have no loss scale for a network with clipped gradients: the bound "
            "would meet scaled ones; leave the loss scale out"
        )
        raise BackendError(msg)
