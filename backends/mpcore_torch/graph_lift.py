"""Calls of ATen as a neutral graph, and what it takes to make the calls again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from mpcore.graph.ir import Graph, Node, Value, unique
from mpcore.numerics.ops import of_aten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

__all__ = ["Call", "Piece", "Slot", "names_of", "piece_of"]

_NORMS = ("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm")
_SELF = re.compile(r"^L\['\w+'\]\.?")
_STATISTICS = ("running_mean", "running_var")
_TRAINS = ("training", "use_input_stats")


@dataclass(frozen=True)
class Slot:
    """Where a value goes in a call's arguments."""

    role: str


@dataclass(frozen=True)
class Call:
    """How a call is made again.

    Attributes:
        target: the function.
        args: its arguments by name, or by number where it has no schema; values are slots.
        outputs: number of tensors that it returns; -1 for one that is not in a tuple.
        sizes: names of results that are no tensors.
    """

    target: Any
    args: dict[str, Any]
    outputs: int


@dataclass
class Piece:
    """One graph and how to run it.

    Attributes:
        graph: the graph.
        calls: by the name of the node.
        constants: tensors that stand in the code, by the name of the value.
        fakes: of every value, by name: shape and dtype without memory.
        fake_mode: the mode that they belong to.
        result: what is returned: a structure of slots and plain values.
    """

    graph: Graph
    calls: dict[str, Call]
    constants: dict[str, Any]
    fakes: dict[str, Any]
    fake_mode: Any
    result: Any

    @property
    def device(self) -> str:
        """Type of the device that it was lifted on."""
        tensors = (fake for fake in self.fakes.values() if isinstance(fake, torch.Tensor))
        return next((str(fake.device.type) for fake in tensors), "cpu")


def names_of(model: nn.Module) -> dict[int, tuple[str, str]]:
    """Return kind and dotted name of every parameter and buffer, by identity."""
    found: dict[int, tuple[str, str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(param), ("param", name))
    for name, buffer in model.named_buffers(remove_duplicate=False):
        found.setdefault(id(buffer), ("buffer", name))
    return found


def piece_of(
    traced: fx.GraphModule,
    inputs: Iterable[Any],
    known: Mapping[int, tuple[str, str]],
    modules: Mapping[int, str],
) -> Piece:
    """Return what ``traced`` does as a graph.

    Args:
        traced: calls of ATen; see ``mpcore_torch.graph_trace``.
        inputs: the real values of its placeholders.
        known: parameters and buffers; see ``names_of``.
        modules: paths of the model's modules, by identity.
    """
    return _Lifter(traced, list(inputs), known, modules).piece()


class _Lifter:
    def __init__(
        self,
        traced: fx.GraphModule,
        inputs: list[Any],
        known: Mapping[int, tuple[str, str]],
        modules: Mapping[int, str],
    ) -> None:
        self.traced, self.inputs, self.known, self.modules = traced, inputs, known, modules
        self.values: dict[str, Value] = {}
        self.nodes: dict[str, Node] = {}
        self.calls: dict[str, Call] = {}
        self.constants: dict[str, Any] = {}
        self.fakes: dict[str, Any] = {}
        self.of: dict[fx.Node, Any] = {}  # fx node -> name of its value, or a tuple of them
        self.order = self.regions = 0

    def piece(self) -> Piece:
        result: Any = None
        for node in self.traced.graph.nodes:
            if node.target in ("_guards_fn", torch.ops.aten._assert_tensor_metadata.default):
                continue  # of torch.export: which shapes are allowed, what was float32 when traced
            if node.op == "placeholder":
                self._input(node)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "output":
                result = self._slots(node.args[0])
            elif _picks(node) and isinstance(self.of.get(node.args[0]), tuple):
                self.of[node] = self.of[node.args[0]][node.args[1]]
            elif node.target is torch.ops.aten.alias.default:
                self.of[node] = self.of[node.args[0]]
            else:
                self._call(node)
        outputs = tuple(s.role for s in _flat(result) if isinstance(s, Slot))
        inputs = tuple(v.name for v in self.values.values() if v.kind not in ("result", "const"))
        graph = Graph(tuple(self.values.values()), tuple(self.nodes.values()), inputs, outputs)
        mode = next((f.fake_mode for f in self.fakes.values() if hasattr(f, "fake_mode")), None)
        if mode is not None:
            for name, fake in self.fakes.items():
                if isinstance(fake, torch.Tensor) and not hasattr(fake, "fake_mode"):
                    self.fakes[name] = mode.from_tensor(fake, static_shapes=True)
        return Piece(graph, self.calls, self.constants, self.fakes, mode, result)

    def _input(self, node: fx.Node) -> None:
        value = self.inputs.pop(0)
        kind, name = self.known.get(id(value), ("input", ""))
        grad = isinstance(value, torch.Tensor) and value.requires_grad
        self._value(node, name or f"input_{len(self.values)}", kind, grad)

    def _constant(self, node: fx.Node) -> None:
        tensor = attrgetter(str(node.target))(self.traced)
        kind, name = self.known.get(id(tensor), ("const", f"constant_{len(self.constants)}"))
        node.meta.setdefault("val", tensor)
        name = self._value(node, name, kind, grad=getattr(tensor, "requires_grad", False))
        self.constants[name] = tensor

    def _value(self, node: fx.Node, name: str, kind: str, grad: bool) -> str:
        name = self._new(name, node.meta.get("val"), kind, grad=grad)
        self.of[node] = name
        return name

    def _new(self, name: str, fake: Any, kind: str, *, grad: bool) -> str:
        name = unique(name, self.values)
        shape: tuple[int | None, ...] = ()
        dtype = type(fake).__name__
        if isinstance(fake, torch.Tensor):
            shape = tuple(s if isinstance(s, int) else None for s in fake.shape)
            dtype = str(fake.dtype).removeprefix("torch.")
        size = _hinted(fake) if None in shape else None
        self.values[name] = Value(name, shape, dtype, kind, grad=grad, size=size)
        self.fakes[name] = fake
        return name

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        path, layer = self._home(node)
        spelled = _spelled(target)
        op = of_aten(spelled) if isinstance(target, OpOverload) else spelled
        name = unique(f"{path}/{op}" if path else op, self.nodes)
        args = {key: self._slots(value) for key, value in _by_name(node).items()}
        roles, inputs = self._reads(args)
        args = _renamed(args, roles)
        made = node.meta.get("val")
        several = isinstance(made, (tuple, list))
        fakes = list(made) if several else [made]
        grad = any(self.values[i].grad for i in inputs)
        outputs = tuple(self._result(name, i, fake, grad) for i, fake in enumerate(fakes))
        outputs = outputs if made is not None else ()
        self.of[node] = outputs if several else (outputs[0] if outputs else None)
        state, dest = self._writes(target, args, roles, inputs)
        settings = {key: _setting(value) for key, value in args.items() if _plain(value)}
        if _toggles(target):
            self.regions += 1
        self.nodes[name] = Node(
            name,
            op,
            spelled,
            inputs,
            outputs,
            roles,
            path,
            layer,
            state=state,
            order=self._ordered(target, state),
            settings=settings,
            keeps=tuple(
                i
                for i, role in enumerate(roles)
                if (op in _NORMS and role != "input") or role in dest
            ),
            fixed=op == "cast" or not any(_is_tensor(self.fakes[i]) for i in inputs),
            region=str(self.regions),
        )
        self.calls[name] = Call(target, args, len(outputs) if several else -1)

    def _result(self, name: str, number: int, fake: Any, grad: bool) -> str:
        title = f"{name}:{number}" if number else name
        flows = grad and isinstance(fake, torch.Tensor) and fake.is_floating_point()
        return self._new(title, fake, "result", grad=flows)

    def _home(self, node: fx.Node) -> tuple[str, str]:
        stack = node.meta.get("nn_module_stack")
        if not stack:
            return "", ""
        key, (text, cls) = list(stack.items())[-1]
        digits = str(key).partition("@")[0]
        path = self.modules.get(int(digits)) if digits.isdigit() else None
        if path is None:
            path = _SELF.sub("", text)
        layer = cls if isinstance(cls, str) else cls.__name__
        return path, layer.rpartition(".")[2]

    def _slots(self, value: Any) -> Any:
        """Return arguments with slots, named by the value for now, in the place of nodes."""

        def slot(node: fx.Node) -> Any:
            name = self.of[node]
            return tuple(Slot(n) for n in name) if isinstance(name, tuple) else Slot(name)

        return fx.node.map_arg(value, slot)

    def _reads(self, args: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        roles, inputs = [], []
        for key, value in args.items():
            found = [item for item in _flat(value) if isinstance(item, Slot)]
            alone = isinstance(value, Slot)
            for number, item in enumerate(found):
                roles.append(key if alone else f"{key}[{number}]")
                inputs.append(item.role)
        return tuple(roles), tuple(inputs)

    def _writes(
        self,
        target: Any,
        args: dict[str, Any],
        roles: tuple[str, ...],
        inputs: tuple[str, ...],
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return every value that a call writes into, and the roles of its destinations."""
        at = dict(zip(roles, inputs, strict=True))
        if any(args.get(key) for key in _TRAINS):
            return tuple(at[role] for role in _STATISTICS if role in at), ()
        if not isinstance(target, OpOverload) or not target._schema.is_mutable:
            return (), ()
        written = [
            argument.name
            for argument in target._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        dest = tuple(role for role in roles if role.partition("[")[0] in written)
        memory = {_memory(self.fakes[at[role]]) for role in dest}
        return tuple(n for n, fake in self.fakes.items() if _memory(fake) in memory), dest

    def _ordered(self, target: Any, state: tuple[str, ...]) -> int:
        tags = getattr(target, "tags", ())
        counts = state or _toggles(target) or torch.Tag.nondeterministic_seeded in tags
        if not counts:
            return -1
        self.order += 1
        return self.order - 1


def _by_name(node: fx.Node) -> dict[str, Any]:
    target: Any = node.target
    if not isinstance(target, OpOverload):
        return {str(i): value for i, value in enumerate(node.args)} | dict(node.kwargs)
    names = [argument.name for argument in target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _renamed(args: dict[str, Any], roles: tuple[str, ...]) -> dict[str, Any]:
    """Return arguments whose slots are named by their roles, in the order of the roles."""
    left = iter(roles)

    def visit(value: Any) -> Any:
        if isinstance(value, Slot):
            return Slot(next(left))
        if isinstance(value, (tuple, list)):
            return type(value)([visit(item) for item in value])
        return value

    return {key: visit(value) for key, value in args.items()}


def _flat(value: Any) -> list[Any]:
    return list(tree_leaves(value))


def _picks(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _spelled(target: Any) -> str:
    if isinstance(target, OpOverload):
        return str(target.name()) + ("" if target._overloadname != "default" else ".default")
    return str(getattr(target, "__name__", target))


def _toggles(target: Any) -> bool:
    return getattr(target, "__name__", "") == "_set_grad_enabled"


def _is_tensor(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and fake.is_floating_point()


def _hinted(fake: torch.Tensor) -> int:
    """Return the number of elements in the example; 1 for sizes that depend on values."""
    count = 1
    for size in fake.shape:
        hint = size if isinstance(size, int) else getattr(size.node, "hint", None)
        count *= hint if isinstance(hint, int) else 1
    return count


def _setting(value: Any) -> Any:
    """Return a plain value as JSON has it."""
    if isinstance(value, (tuple, list)):
        return [_setting(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _memory(fake: Any) -> int:
    """Return what tells tensors that share memory; views of one have the same."""
    return fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) else id(fake)


def _plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
