"""A piece of a model as dynamo hands it over, traced down to the functions that op lists name.

Dynamo finds the pieces: straight lines of calls between Python's decisions. ``make_fx`` before
dispatch then gives the functions of ATen that autocast would see, with nothing decomposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.overrides import TorchFunctionMode

from mpcore.errors import GraphError
from mpcore_torch import regions

__all__ = ["refuse_calls", "traced"]

_CASTS = ("to", "float", "half", "bfloat16", "double", "type", "type_as")
_WHERE = "; keep that part out of by='graph' (by='op' runs it), or write it in plain calls"


def traced(piece: fx.GraphModule) -> fx.GraphModule:
    """Return a piece as calls of ATen; placeholders are those of the piece, in order.

    Raises:
        GraphError: a call in it cannot be lifted.
    """
    refuse_calls(piece)
    fakes = [node.meta["example_value"] for node in piece.graph.find_nodes(op="placeholder")]
    # Dynamo's own mode: the one of its backends would want to know where sizes come from.
    fake_mode = next(f.fake_mode for f in fakes if isinstance(f, torch.Tensor))

    def run(*values: Any) -> Any:
        with _Apart():
            return fx.Interpreter(piece).run(*values)

    with fake_mode, preserve_node_meta(), regions.off():
        found = make_fx(run, pre_dispatch=True)(*fakes)
    refuse_calls(found)
    return found


class _Apart(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed
    """Keeps a value and its cast apart where the cast does nothing.

    ``x.float()`` is ``x`` itself in float32, and a trace would take the one for the other; in 16
    bits they are two.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func``; a cast on an alias of its own, which the lifter looks through."""
        if getattr(func, "__name__", "") in _CASTS and isinstance(args[0], torch.Tensor):
            args = (torch.ops.aten.alias.default(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def refuse_calls(module: fx.GraphModule) -> None:
    """Raise GraphError for calls whose casts or gradients a graph cannot carry."""
    for node in module.graph.nodes:
        target = node.target
        if isinstance(target, HigherOrderOperator):
            what = getattr(target, "__name__", str(target))
            msg = f"{_path(node)}{what} cannot be lifted: it holds calls of its own{_WHERE}"
            raise GraphError(msg)
        if "autocast" in getattr(target, "__name__", ""):
            msg = (
                f"{_path(node)}torch.autocast inside of the model cannot be lifted: the graph "
                "decides there; take the region out and write a rule for the path instead"
            )
            raise GraphError(msg)


def _path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    return f"{list(stack.values())[-1][0]}: "
