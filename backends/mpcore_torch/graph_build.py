"""A graph and its plan as code that runs: the same calls, with casts between them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from mpcore.errors import GraphError
from mpcore.graph.clip import CLIP
from mpcore_torch import graph_casts
from mpcore_torch.graph_facts import arguments, fill
from mpcore_torch.graph_marks import CAST, PLAN
from mpcore_torch.graph_plan import FILLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.graph.ir import Cast, Graph, GraphPlan, Node
    from mpcore_torch.graph_lift import Piece

__all__ = ["build"]


def build(
    piece: Piece,
    graph: Graph,
    plan: GraphPlan | None = None,
    *,
    device: str = "cpu",
    low: str = "",
    new: Mapping[str, Any] = MappingProxyType({}),
    bakes: bool = False,
) -> fx.GraphModule:
    """Return a module that runs ``graph``; it takes the graph's inputs in their order.

    Args:
        piece: what was lifted.
        graph: its graph, or one that was made of it.
        plan: where casts lie; None for none.
        device: type of the device, for calls that are left to the framework's own list.
        low: the 16-bit dtype of that list.
        new: parameters that ``graph`` reads and ``piece`` has not, by name.
        bakes: whether parameters that are cast are stored as what they are cast to.
    """
    return _Builder(piece, graph, plan, device, low, new, bakes).module()


class _Builder:
    def __init__(
        self,
        piece: Piece,
        graph: Graph,
        plan: GraphPlan | None,
        device: str,
        low: str,
        new: Mapping[str, Any],
        bakes: bool,
    ) -> None:
        self.piece, self.graph, self.plan = piece, graph, plan
        self.device, self.low = device, getattr(torch, low or "float32")
        self.code = fx.Graph()
        self.root = torch.nn.Module()
        self.new, self.bakes = new, bakes
        self.of: dict[str, Any] = {}
        self.waiting: dict[tuple[str, str], list[Any]] = {}  # (user, value) -> casts, in order
        self.first: dict[str, list[Cast]] = {}
        self.after: dict[str, list[Cast]] = {}
        for cast in plan.casts if plan is not None else ():
            late = cast.place == "after producer"
            home = cast.value if late else self._earliest(cast.users)
            (self.after if late else self.first).setdefault(home, []).append(cast)

    def _earliest(self, users: tuple[str, ...]) -> str:
        at = {node.name: i for i, node in enumerate(self.graph.nodes)}
        return min(users, key=lambda name: at.get(name, len(at)))

    def module(self) -> fx.GraphModule:
        held = {**self.piece.constants, **self.new}
        for name in self.piece.graph.inputs:
            if name not in held:
                self._made(name, self.code.placeholder(_safe(name)))
        for name, tensor in held.items():
            if name in self.graph.value and not self._only_cast(name):
                self._made(name, self.code.get_attr(self._hold(name, tensor)))
        for node in self.graph.nodes:
            for cast in self.first.get(node.name, ()):
                self._cast(cast)
            self._call(node)
        for cast in self.first.get("", ()):
            self._cast(cast)
        outputs = iter(self.graph.outputs)
        self.code.output(fill(self.piece.result, lambda _: self._read("", next(outputs))))
        self.code.lint()
        made = fx.GraphModule(self.root, self.code)
        made.meta[PLAN] = self.plan
        return made

    def _hold(self, name: str, tensor: Any) -> str:
        """Put a tensor into the module under its own dotted name; return that name."""
        *path, last = name.split(".")
        home = self.root
        for part in path:
            if part not in home._modules:
                home.add_module(part, torch.nn.Module())
            home = home._modules[part]
        if isinstance(tensor, torch.nn.Parameter):
            home.register_parameter(last, tensor)
        else:
            home.register_buffer(last, tensor)
        return name

    def _made(self, name: str, code: Any) -> None:
        self.of[name] = code
        for cast in self.after.get(name, ()):
            dtype = getattr(torch, cast.dtype)
            self.of[name] = self.code.call_function(graph_casts.cast, (self.of[name], dtype))
            self.of[name].meta[CAST] = cast

    def _only_cast(self, name: str) -> bool:
        """Return whether a parameter that is stored as its casts is read in no other way."""
        if not self.bakes or name in self.graph.outputs:
            return False
        reads = sum(node.inputs.count(name) for node in self.graph.nodes)
        casts = [c for group in self.first.values() for c in group if c.value == name]
        return bool(casts) and reads == sum(len(cast.users) for cast in casts)

    def _cast(self, cast: Cast) -> None:
        dtype, count = getattr(torch, cast.dtype), len(cast.users)
        stored = self.piece.constants.get(cast.value)
        if self.bakes and stored is not None:
            name = f"{cast.value}_{cast.dtype}"
            code = self.code.get_attr(self._hold(name, stored.detach().to(dtype)))
            for user in cast.users:
                self.waiting.setdefault((user, cast.value), []).append(code)
            return
        source = self.of[cast.value]
        if cast.fork:
            whole = self.code.call_function(graph_casts.fork, (source, dtype, count))
            whole.meta[CAST] = cast
            made = [self._pick(whole, i) for i in range(count)]
        else:
            code = self.code.call_function(graph_casts.cast, (source, dtype))
            code.meta[CAST] = cast
            made = [code] * count
        for user, code in zip(cast.users, made, strict=True):
            self.waiting.setdefault((user, cast.value), []).append(code)

    def _pick(self, whole: Any, number: int) -> Any:
        return self.code.call_function(_item, (whole, number))

    def _read(self, user: str, name: str) -> Any:
        casts = self.waiting.get((user, name))
        if not casts:
            return self.of[name]
        # The output reads one cast as often as it likes.
        return casts[0] if user == "" else casts.pop(0)

    def _call(self, node: Node) -> None:
        at = dict(zip(node.roles, node.inputs, strict=True))
        kept = {node.roles[i] for i in node.keeps}

        def value(role: str) -> Any:
            return self.of[at[role]] if role in kept else self._read(node.name, at[role])

        call = self.piece.calls.get(node.name)
        if call is None:
            self._made(node.outputs[0], self._own(node, value))
            return
        given = {key: fill(item, value) for key, item in call.args.items()}
        for role in at:  # what a change of the graph has added
            if role.partition("[")[0] not in given or given[role.partition("[")[0]] is None:
                given[role] = value(role)
        if node.target in FILLS and self.plan is not None and self.plan.how == "cheapest":
            given["dtype"] = getattr(torch, self.plan.output[node.name], given.get("dtype"))
        args, kwargs = arguments(call.target, given)
        left = self.plan is not None and self.plan.compute.get(node.name) == "native"
        if left:
            first = (call.target, self.device, self.low)
            made = self.code.call_function(graph_casts.native, (*first, *args), kwargs)
        else:
            made = self.code.call_function(call.target, args, kwargs)
        made.meta["mpcore"] = node.name
        if call.outputs < 0 or not node.outputs:
            for name in node.outputs:
                self._made(name, made)
            return
        for number, name in enumerate(node.outputs):
            picked = self._pick(made, number)
            self._made(name, picked)

    def _own(self, node: Node, value: Any) -> Any:
        """Return the code of a node that was put in."""
        if node.target == CLIP:
            settings = (node.settings.get("norm"), node.settings.get("value"))
            return self.code.call_function(graph_casts.clip, (value("input"), *settings))
        if not node.target.startswith("aten::"):
            msg = f"node {node.name!r} cannot be built: torch has no {node.target!r}"
            raise GraphError(msg)
        packet, _, overload = node.target.removeprefix("aten::").partition(".")
        try:
            target = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError as exc:
            msg = f"node {node.name!r} cannot be built: torch has no {node.target!r}"
            raise GraphError(msg) from exc
        given = {role: value(role) for role in node.roles} | dict(node.settings)
        args, kwargs = arguments(target, given)
        return self.code.call_function(target, args, kwargs)


def _item(whole: Any, number: int) -> Any:
    return whole[number]


def _safe(name: str) -> str:
    return "v_" + "".join(c if c.isalnum() else "_" for c in name)
