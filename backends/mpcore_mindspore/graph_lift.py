"""Primitives of a compiled network as a neutral graph, and what it takes to call them again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore.train.mind_ir_pb2 import AttributeProto

from mpcore.errors import GraphError
from mpcore.graph.edit import remove_dead
from mpcore.graph.ir import Graph, Node, Value, is_float, unique
from mpcore.tools.inspection.trace import neutral_op
from mpcore_mindspore.graph_trace import DTYPES, array_of
from mpcore_mindspore.layers import STATISTICS, leaves, parameter_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mindspore import nn

    from mpcore_mindspore.graph_trace import Arguments, Traced

__all__ = ["Call", "Piece", "Slot", "piece_of"]

_IN_PLACE = {
    "InplaceAddExt": "AddExt",
    "InplaceSubExt": "SubExt",
    "InplaceMul": "Mul",
    "InplaceDiv": "Div",
    "InplaceMuls": "Muls",
    "InplaceDivs": "Divs",
}
_ORDER_ALONE = ("UpdateState",)
_BRANCHES = ("Switch", "SwitchLayer", "Partial", "Call")
_NO_GRAPH = {"PyExecute", "PyInterpret", "InsertGradientOf", "HookBackward", "CellBackwardHook"}
_GATHERS = ("MakeTuple", "make_tuple", "MakeList", "make_list")
_PICKS = ("TupleGetItem", "tuple_getitem", "ListGetItem", "list_getitem")
_RANDOM = (
    *("Dropout", "Uniform", "Normal", "Multinomial", "Randperm", "Bernoulli", "Gamma"),
    *("Standard", "Random", "Poisson", "Rand"),
)
_WRITES = {"Assign": (0,), "AssignAdd": (0,), "AssignSub": (0,), "BatchNorm": (3, 4)}
_ROLES = {
    "MatMul": ("input", "weight"),
    "MatMulExt": ("input", "weight"),
    "Dense": ("input", "weight", "bias"),
    "Conv2D": ("input", "weight"),
    "Conv3D": ("input", "weight"),
    "Conv2DTranspose": ("input", "weight"),
    "BiasAdd": ("input", "bias"),
    "BatchNorm": ("input", "weight", "bias", "running_mean", "running_var"),
    "LayerNorm": ("input", "weight", "bias"),
}
_TUPLES = (AttributeProto.TUPLE, AttributeProto.LIST)


@dataclass(frozen=True)
class Slot:
    """Where a value goes in a call's arguments."""

    role: str


@dataclass(frozen=True)
class Call:
    """How a primitive is called again.

    Attributes:
        name: of the primitive.
        args: all that it takes, in order; values are slots, several may be in a tuple.
        attrs: what it was made with, where that is no argument.
        outputs: number of Tensors that it returns in a tuple; -1 for one that is not in one.
    """

    name: str
    args: tuple[Any, ...]
    attrs: Mapping[str, Any]
    outputs: int


@dataclass
class Piece:
    """One graph and how to run it.

    Attributes:
        graph: the graph.
        calls: by the name of the node.
        inputs: names of the values that stand for the Tensors of a call, in order.
        params: Parameters by the name of the value.
        constants: arrays that stand in the code, by the name of the value.
        result: what is returned: slots and plain values in tuples.
        random: names of the nodes that draw.
        arguments: what it was lifted for.
    """

    graph: Graph
    calls: dict[str, Call]
    inputs: tuple[str, ...]
    params: dict[str, Any]
    constants: dict[str, Any]
    result: Any
    arguments: Arguments
    random: tuple[str, ...] = field(default=())


def piece_of(net: nn.Cell, traced: Traced) -> Piece:
    """Return what was compiled as a graph.

    Raises:
        GraphError: something in it cannot be called again; the message names it.
    """
    return _Lifter(net, traced).piece()


class _Lifter:
    def __init__(self, net: nn.Cell, traced: Traced) -> None:
        self.net, self.traced = net, traced
        self.cells = {path: cell for path, (cell, _) in leaves(net).items()}
        self.categories = {path: category for path, (_, category) in leaves(net).items()}
        self.paths = parameter_paths(net)
        self.primitives = {p.name: p for p in traced.proto.primitives}
        self.values: dict[str, Value] = {}
        self.nodes: dict[str, Node] = {}
        self.calls: dict[str, Call] = {}
        self.params: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.of: dict[str, Any] = {}  # name in MindIR -> slot, plain value, or a tuple of them
        self.homes: dict[str, str] = {}  # value -> path of what made it
        self.random: list[str] = []
        self.order = 0
        self.monads = self._monads()

    def piece(self) -> Piece:
        graph = self.traced.proto.graph
        inputs = tuple(self._input(entry) for entry in graph.input)
        for entry in graph.parameter:
            self._param(entry)
        for node in graph.node:
            self._node(node)
        if len(graph.output) != 1:
            msg = f"{type(self.net).__name__} returns nothing that a graph could"
            raise GraphError(msg, "use by='layer'")
        result = self._read(graph.output[0].name)
        outputs = tuple(slot.role for slot in _flat(result) if isinstance(slot, Slot))
        held = (*inputs, *(v.name for v in self.values.values() if v.kind in ("param", "buffer")))
        made = Graph(tuple(self.values.values()), tuple(self.nodes.values()), held, outputs)
        made = remove_dead(made)
        self._apart(made)
        return Piece(
            made,
            self.calls,
            inputs,
            self.params,
            self.constants,
            result,
            self.traced.arguments,
            tuple(name for name in self.random if name in made.node),
        )

    def _apart(self, graph: Graph) -> None:
        """Let what is written in place (``y += x``) be a value of its own if none reads it later.

        MindSpore's compiler fails on those calls where they are made as primitives.
        """
        at = {node.name: i for i, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            call = self.calls[node.name]
            made, old = _IN_PLACE.get(call.name), node.inputs[0] if node.inputs else ""
            last = not made or all(at[u.name] <= at[node.name] for u in graph.users[old])
            if made is None or not last or old in graph.outputs or old not in graph.producer:
                continue
            attrs = {k: v for k, v in call.attrs.items() if not k.startswith("side_effect")}
            self.calls[node.name] = replace(call, name=made, attrs=attrs)

    # --- what comes in ---------------------------------------------------------------------

    def _input(self, entry: Any) -> str:
        name = f"input_{len(self.values)}"
        shape, dtype = _typed(entry.tensor[0] if entry.tensor else entry.attr_info.tensors[0])
        self._value(name, shape, dtype, "input")
        self.of[entry.name] = Slot(name)
        return name

    def _param(self, entry: Any) -> None:
        own = entry.name.partition(":")[2]
        param = self.traced.params.get(own)
        if param is None:
            msg = f"{own!r} is no Parameter of {type(self.net).__name__}"
            raise GraphError(msg, "use by='layer'")
        name = unique(self.paths.get(id(param), own), self.values)
        kind = "buffer" if own.endswith(STATISTICS) or not param.requires_grad else "param"
        shape, dtype = _typed(entry)
        self._value(name, shape, dtype, kind, grad=bool(param.requires_grad))
        self.params[name] = param
        self.of[entry.name] = Slot(name)

    def _value(self, name: str, shape: Any, dtype: str, kind: str, *, grad: bool = False) -> None:
        self.values[name] = Value(name, shape, dtype, kind, grad=grad)

    def _constant(self, node: Any) -> None:
        attribute = node.attribute[0]
        made = _plain(attribute)
        if isinstance(made, _Array):
            name = f"constant_{len(self.constants)}"
            self.constants[name] = made.array
            self._value(name, tuple(made.array.shape), made.dtype, "const")
            made = Slot(name)
        self.of[node.output[0]] = made

    # --- calls -------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        if node.op_type == "Constant":
            self._constant(node)
            return
        proto = self.primitives.get(node.op_type.removeprefix("REF::"))
        name = proto.op_type if proto is not None else "Call"
        if name in _BRANCHES:
            msg = (
                f"{type(self.net).__name__} decides by the value of a Tensor "
                f"({node.domain or 'a branch'}), which is not lifted"
            )
            raise GraphError(msg, "use by='layer'")
        if name in _NO_GRAPH:
            msg = f"{node.domain or name} cannot be lifted"
            raise GraphError(msg, "use by='layer'")
        out = node.output[0]
        if name in _ORDER_ALONE:
            self.of[out] = None
        elif name in ("Load", "Depend"):
            self.of[out] = self._read(node.input[0])
        elif name in _GATHERS:
            self.of[out] = tuple(self._read(i) for i in node.input)
        elif name in _PICKS:
            self.of[out] = self._read(node.input[0])[self._read(node.input[1])]
        else:
            attributes = proto.attribute if proto is not None else ()
            self._call(node, name, {a.name: _plain(a) for a in attributes})

    def _read(self, name: str) -> Any:
        if name not in self.of:
            msg = f"{name.rpartition(':')[0] or name} cannot be lifted"
            raise GraphError(msg, "use by='layer'")
        return self.of[name]

    def _call(self, node: Any, primitive: str, attrs: dict[str, Any]) -> None:
        given = tuple(self._read(i) for i in node.input if i not in self.monads)
        inputs, roles, args = self._roles(primitive, given)
        path = self._path(node.domain, inputs)
        neutral = self._neutral(primitive, path)
        name = unique(f"{path}/{neutral}" if path else neutral, self.nodes)
        cell = self.cells.get(path)
        outputs, count = self._outputs(node, name, inputs, path)
        written = [i for i in _WRITES.get(primitive, ()) if i < len(roles)]
        trains = primitive != "BatchNorm" or self._flag(args, 5)
        state = tuple(inputs[i] for i in written if trains)
        draws = primitive.startswith(_RANDOM)
        if draws:
            self.random.append(name)
        floats = [i for i, n in enumerate(inputs) if is_float(self.values[n].dtype)]
        settings = {f"arg{i}": a for i, a in enumerate(args) if _simple(a)}
        settings |= {k: v for k, v in attrs.items() if _simple(v)}
        if primitive == "BatchNorm":
            settings |= {"training": self._flag(args, 5), "eps": args[6]}
        norm = primitive.endswith("Norm") and len(inputs) > 1
        self.nodes[name] = Node(
            name,
            neutral,
            f"P.{primitive}",
            inputs,
            outputs,
            roles,
            path,
            type(cell).__name__ if cell is not None else "",
            state=state,
            order=self.order if state or draws else -1,
            settings=settings,
            keeps=tuple(range(1, len(inputs))) if norm else tuple(written),
            fixed=primitive == "Cast" or not floats,
            exact=primitive != "Cast",
        )
        self.order += bool(state or draws)
        self.calls[name] = Call(primitive, args, attrs, count)

    def _monads(self) -> set[str]:
        """Return what stands for the order of effects alone."""
        found = set()
        for node in self.traced.proto.graph.node:
            kind = node.attribute[0].type if node.attribute else -1
            proto = self.primitives.get(node.op_type.removeprefix("REF::"))
            updates = proto is not None and proto.op_type in _ORDER_ALONE
            if updates or kind in (AttributeProto.UMONAD, AttributeProto.IOMONAD):
                found.add(node.output[0])
        return found

    def _roles(
        self, primitive: str, args: tuple[Any, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Any, ...]]:
        """Return values, what each is to the call, and the arguments with slots of those names."""
        named = _ROLES.get(primitive, ())
        inputs: list[str] = []
        roles: list[str] = []

        def take(item: Any, role: str) -> Any:
            if isinstance(item, Slot):
                role = unique(role, roles)
                roles.append(role)
                inputs.append(item.role)
                return Slot(role)
            if isinstance(item, tuple):
                return tuple(take(x, f"{role}[{i}]") for i, x in enumerate(item))
            return item

        made = [take(x, named[i] if i < len(named) else f"arg{i}") for i, x in enumerate(args)]
        return tuple(inputs), tuple(roles), tuple(made)

    def _path(self, domain: str, inputs: tuple[str, ...]) -> str:
        """Return the path of the Cell that called a primitive.

        What a Cell calls beside its Cells is compiled once for all Cells of its class and named
        after the first: then what made its inputs says which one it is.
        """
        parts = domain.split("/")[2:-1]  # behind "Default/net-Class", before the op
        path = ".".join(part.rpartition("-")[0] for part in parts)
        while path and path not in self.cells:
            path = path.rpartition(".")[0]
        kind = type(self.cells.get(path))
        for name in inputs:
            home = self.homes.get(name, path)
            while home and not (home in self.cells and type(self.cells[home]) is kind):
                home = home.rpartition(".")[0]
            if home and path and self.categories[path] in ("container", "other"):
                return home
        return path

    def _neutral(self, primitive: str, path: str) -> str:
        if primitive == "BiasAdd":
            return "bias_add"
        found = neutral_op("mindspore", primitive)
        if self.categories.get(path) == "linear" and primitive in ("MatMul", "MatMulExt"):
            return "linear"
        return found or primitive

    def _outputs(
        self, node: Any, name: str, inputs: tuple[str, ...], path: str
    ) -> tuple[tuple[str, ...], int]:
        shape = next((a for a in node.attribute if a.name == "shape"), None)
        if shape is None:
            return (), -1
        several = shape.type in _TUPLES
        entries = [v for v in shape.values if v.tensors] if several else list(shape.tensors)
        if several and len(entries) != len([v for v in shape.values if v.type]):
            msg = f"{name} makes something else than Tensors, which cannot be lifted"
            raise GraphError(msg)
        grad = any(self.values[n].grad for n in inputs)
        made = []
        for i, entry in enumerate(entries):
            dims, dtype = _typed(entry.tensors[0] if several else entry)
            title = unique(f"{name}:{i}" if i else name, self.values)
            self._value(title, dims, dtype, "result", grad=grad and is_float(dtype))
            self.homes[title] = path
            made.append(title)
        slots = tuple(Slot(title) for title in made)
        self.of[node.output[0]] = slots if several else (slots[0] if slots else None)
        return tuple(made), len(made) if several else -1

    def _flag(self, args: tuple[Any, ...], at: int) -> bool:
        return bool(args[at]) if len(args) > at else False


@dataclass(frozen=True)
class _Array:
    array: Any
    dtype: str


def _plain(attribute: Any) -> Any:
    """Return a value of MindIR as Python has it."""
    kind = attribute.type
    if kind == AttributeProto.BOOL:
        return bool(attribute.i)
    if kind in (AttributeProto.FLOAT, AttributeProto.FLOAT16):
        return _shortest(attribute.f)
    if kind == AttributeProto.DOUBLE:
        return attribute.d
    if kind == AttributeProto.STRING:
        return attribute.s.decode()
    if kind in _TUPLES:
        return _sequence(attribute)
    if kind == AttributeProto.TENSORS:
        tensor = attribute.tensors[0]
        if not tensor.raw_data and not tensor.dims:
            return None
        return _Array(array_of(tensor), DTYPES[tensor.data_type])
    if kind in (AttributeProto.UMONAD, AttributeProto.IOMONAD, AttributeProto.NONE):
        return None
    if AttributeProto.UINT8 <= kind <= AttributeProto.UINT64:
        return attribute.i
    msg = f"a constant of kind {AttributeProto.AttributeType.Name(kind)} cannot be lifted"
    raise GraphError(msg)


def _shortest(number: float) -> float:
    """Return the shortest decimal that is this float32: what stood in the code, most likely."""
    return float(str(np.float32(number)))


def _sequence(attribute: Any) -> tuple[Any, ...]:
    found = []
    for value in attribute.values:
        if value.type in _TUPLES or value.s or value.type in (AttributeProto.TENSORS,):
            found.append(_plain(value))
        elif value.ints:
            found += list(value.ints)
        elif value.floats:
            found += list(map(_shortest, value.floats))
        elif value.strings:
            found += [s.decode() for s in value.strings]
        else:
            found.append(_plain(value))
    return tuple(found)


def _typed(tensor: Any) -> tuple[tuple[int | None, ...], str]:
    shape = tuple(None if size < 0 else int(size) for size in tensor.dims)
    return shape, DTYPES.get(tensor.data_type, "unknown")


def _flat(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [found for item in value for found in _flat(item)]
    return [value]


def _simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_simple, value))
    return isinstance(value, (bool, int, float, str))
