"""A graph's code without what only tools need: calls by torch's own bindings, names bound once.

The module that fx makes finds each ATen call by four attributes, and has its arguments read by a
schema; beside kernels of microseconds that is seen. The same kernels run here.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from mpcore_torch.graph_casts import cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["direct"]

# Their bindings take the arguments of the schema, in its order.
_OWN = (
    *("arange", "batch_norm", "bmm", "cat", "conv1d", "conv2d", "dropout", "embedding"),
    *("group_norm", "layer_norm", "matmul", "mm", "ones", "permute", "relu", "reshape"),
    *("sigmoid", "tanh", "tril", "triu", "zeros"),
)
_OVERLOADS = {
    "masked_fill.Scalar": torch.masked_fill,
    "add.Tensor": torch.add,
    "div.Tensor": torch.div,
    "mul.Tensor": torch.mul,
    "sub.Tensor": torch.sub,
    "softmax.int": torch.softmax,
    "transpose.int": torch.transpose,
    "view.default": torch.Tensor.view,
    "gelu.default": torch._C._nn.gelu,
    "linear.default": torch._C._nn.linear,
    "silu.default": torch._C._nn.silu,
}
_BINDINGS = {
    getattr(getattr(torch.ops.aten, name), overload): binding
    for (name, _, overload), binding in (
        *((f"{name}.default".partition("."), getattr(torch, name)) for name in _OWN),
        *((name.partition("."), binding) for name, binding in _OVERLOADS.items()),
    )
}


def direct(code: fx.GraphModule) -> Callable[..., Any]:
    """Return a function that does what ``code`` does, with the same kernels."""
    return _Writer(code).function()


class _Writer:
    def __init__(self, code: fx.GraphModule) -> None:
        self.code = code
        self.held: dict[str, Any] = {}
        self.names: dict[fx.Node, str] = {}
        self.lines: list[str] = []

    def function(self) -> Callable[..., Any]:
        nodes = list(self.code.graph.nodes)
        inputs = []
        last = {used: node for node in nodes for used in node.all_input_nodes}
        for number, node in enumerate(nodes):
            self.names[node] = f"v{number}"
            if node.op == "placeholder":
                inputs.append(f"v{number}")
            elif node.op == "get_attr":
                self.held[f"v{number}"] = attrgetter(str(node.target))(self.code)
            elif node.op == "output":
                self.lines.append(f"return {self._text(node.args[0])}")
            else:
                bound = f"v{number} = " if node.users else ""
                self.lines.append(bound + self._call(node))
                # A value must not live longer than fx's own code lets it.
                done = [n for n in node.all_input_nodes if last[n] is node and n.op != "get_attr"]
                if done:
                    self.lines.append(f"del {', '.join(self.names[n] for n in done)}")
        body = "".join(f"\n    {line}" for line in self.lines)
        exec(f"def graph({', '.join(inputs)}):{body}", self.held)  # of our own text
        made: Callable[..., Any] = self.held.pop("graph")
        return made

    def _call(self, node: fx.Node) -> str:
        name = f"f{len(self.held)}"
        target = _BINDINGS.get(node.target, node.target)
        if target is cast and node.args[0].op.startswith("call"):
            target = torch.Tensor.to  # of a result: no leaf, so nothing to remember
        self.held[name] = target
        given = [self._text(item) for item in node.args]
        given += [f"{key}={self._text(item)}" for key, item in node.kwargs.items()]
        return f"{name}({', '.join(given)})"

    def _text(self, item: Any) -> str:
        if isinstance(item, fx.Node):
            return self.names[item]
        if isinstance(item, (tuple, list)) and _holds_node(item):
            inside = "".join(f"{self._text(each)}, " for each in item)
            return f"({inside})" if isinstance(item, tuple) else f"[{inside}]"
        if isinstance(item, slice) and _holds_node((item.start, item.stop, item.step)):
            return f"slice({', '.join(map(self._text, (item.start, item.stop, item.step)))})"
        if isinstance(item, dict) and _holds_node(item.values()):
            return "{" + ", ".join(f"{k!r}: {self._text(v)}" for k, v in item.items()) + "}"
        name = f"c{len(self.held)}"
        self.held[name] = item
        return name


def _holds_node(items: Iterable[Any]) -> bool:
    return any(
        isinstance(item, fx.Node)
        or (isinstance(item, (tuple, list)) and _holds_node(item))
        or (isinstance(item, slice) and _holds_node((item.start, item.stop, item.step)))
        or (isinstance(item, dict) and _holds_node(item.values()))
        for item in items
    )
