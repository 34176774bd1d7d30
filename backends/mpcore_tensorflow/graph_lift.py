"""Operations of TensorFlow as a neutral graph, and what it takes to make them again."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import control_flow_util_v2

from mpcore.errors import GraphError
from mpcore.graph.edit import remove_dead
from mpcore.graph.ir import Graph, Node, Value, unique
from mpcore.tools.inspection.trace import neutral_op
from mpcore_tensorflow.graph_facts import castable_inputs, grouped
from mpcore_tensorflow.layers import buffers, kind_of, variable_names
from mpcore_tensorflow.tap import OPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import keras

    from mpcore_tensorflow.graph_trace import Owner, Traced

__all__ = ["SILU", "Call", "Piece", "Source", "body_of", "piece_of"]

SILU = "silu"
"""The target of ``tf.nn.silu``, whose gradient TensorFlow writes by hand."""

_LOOPS = ("While", "StatelessWhile")
_BRANCHES = ("If", "StatelessIf")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_REFUSED = {"Case", "StatelessCase", "XlaLaunch", "PyFunc", "EagerPyFunc", "SymbolicGradient"}
_KNOWN_GRADIENTS = {("tensorflow.python.ops.nn_impl", "swish"): SILU}
_LINEAR = ("matmul", "batch_matmul", "einsum", "linear")


@dataclass(frozen=True)
class Source:
    """Where a value that no node makes comes from.

    Attributes:
        kind: ``"input"`` (its position), ``"variable"``, ``"constant"`` (an array) or
            ``"tensor"`` (an eager one).
    """

    kind: str
    what: Any


@dataclass(frozen=True)
class Call:
    """How an operation is made again.

    Attributes:
        op: the one that was traced.
        inputs: names of its values, in the operation's order.
        handles: positions of inputs that are variables themselves, not their values.
        bodies: of a branch or a loop.
    """

    op: tf.Operation
    inputs: tuple[str, ...]
    handles: tuple[int, ...] = ()
    bodies: tuple[Piece, ...] = ()


@dataclass
class Piece:
    """One graph and how to run it.

    Attributes:
        graph: the graph.
        calls: by the name of the node.
        sources: of what no node makes, by the name of the value.
        inputs: names of the values that stand for TensorFlow's own inputs, in order.
        shapes: of those, as far as they are known.
        owners: by the name of the node, the layer that made it.
    """

    graph: Graph
    calls: dict[str, Call] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    shapes: tuple[Any, ...] = ()
    owners: dict[str, Any] = field(default_factory=dict)

    def pieces(self) -> list[Piece]:
        """Return this one and those of its branches and loops."""
        inner = [body for call in self.calls.values() for body in call.bodies]
        return [self, *(piece for body in inner for piece in body.pieces())]


def piece_of(model: keras.Model, traced: Traced) -> Piece:
    """Return what was traced as a graph.

    Raises:
        GraphError: something in it cannot be made again; the message names it.
    """
    return _Lifter(model, traced).top()


class _Names:
    """What all graphs of one model share."""

    def __init__(self, model: keras.Model, owners: Mapping[tuple[int, str], Owner]) -> None:
        self.owners, self.nodes = owners, set[str]()
        paths = variable_names(model)
        statistics = {id(v) for v in buffers(model)}
        self.variables = {}
        for variable in model.variables:
            kind = "param" if variable.trainable and id(variable) not in statistics else "buffer"
            path = paths.get(id(variable), variable.path.replace("/", "."))
            self.variables[id(variable.value)] = (path, kind)
        self.by_handle: dict[int, Any] = {id(v.value.handle): v.value for v in model.variables}


class _Lifter:
    def __init__(self, model: keras.Model, traced: Traced) -> None:
        self.traced, self.shared = traced, _Names(model, traced.owners)
        for variable in traced.graph.variables:
            self.shared.by_handle.setdefault(id(variable.handle), variable)

    def top(self) -> Piece:
        graph = self.traced.graph
        given: dict[int, Any] = {}
        for number, placeholder in enumerate(self.traced.inputs):
            given[id(placeholder)] = Source("input", number)
        for external, internal in graph.captures:
            variable = self.shared.by_handle.get(id(external))
            if variable is not None:
                given[id(internal)] = Source("variable", variable)
            elif isinstance(external, tf_ops.EagerTensor):
                given[id(internal)] = Source("tensor", external)
            else:
                msg = f"{internal.name} is a tensor of another graph; call the model with it"
                raise GraphError(msg)
        return _Body(self.shared, graph, given, self.traced.outputs, "").piece()


class _Body:
    """Lifts one graph of TensorFlow; functions that it calls become a part of it."""

    def __init__(
        self,
        shared: _Names,
        graph: tf.Graph,
        given: dict[int, Any],
        outputs: Sequence[Any],
        prefix: str,
        owner: Any = None,
    ) -> None:
        self.owner = owner
        self.shared, self.graph, self.given = shared, graph, given
        self.wanted, self.prefix = outputs, prefix
        self.values: dict[str, Value] = {}
        self.nodes: dict[str, Node] = {}
        self.calls: dict[str, Call] = {}
        self.sources: dict[str, Source] = {}
        self.owners: dict[str, Any] = {}
        self.of: dict[int, str] = {}  # id of a tensor -> name of its value
        self.kept: list[Any] = []  # tensors, so that no id is given twice
        self.order = 0

    def piece(self) -> Piece:
        self.written = _written(self.graph)
        for tensor in self.graph.inputs:
            self._source(tensor, self.given[id(tensor)])
        self._ops(self.graph, "")
        outputs = tuple(self.of[id(t)] for t in self.wanted)
        inputs = tuple(
            name for name, source in self.sources.items() if source.kind in ("input", "variable")
        )
        graph = Graph(tuple(self.values.values()), tuple(self.nodes.values()), inputs, outputs)
        graph = remove_dead(graph)
        names = tuple(self.of[id(t)] for t in self.graph.inputs)
        shapes = tuple(t.shape for t in self.graph.inputs)
        return Piece(graph, self.calls, self.sources, names, shapes, self.owners)

    def _source(self, tensor: tf.Tensor, source: Source) -> None:
        if source.kind == "variable":
            own = f"variable_{len(self.values)}", "buffer"
            name, kind = self.shared.variables.get(id(source.what), own)
            shape, dtype = source.what.shape, source.what.dtype
        else:
            name, kind = f"input_{len(self.values)}", "input"
            shape, dtype = tensor.shape, tensor.dtype
            if source.kind == "tensor":
                name, kind = f"constant_{len(self.values)}", "const"
        grad = kind == "param" and bool(source.what.trainable)
        name = self._value(tensor, name, shape, dtype, kind, grad=grad)
        self.sources[name] = source

    def _value(
        self, tensor: tf.Tensor, name: str, shape: Any, dtype: Any, kind: str, *, grad: bool
    ) -> str:
        name = unique(name, self.values)
        dims = tuple(shape) if shape.rank is not None else (None,)
        self.values[name] = Value(name, dims, tf.as_dtype(dtype).base_dtype.name, kind, grad=grad)
        self.of[id(tensor)] = name
        self.kept.append(tensor)
        return name

    def _ops(self, graph: tf.Graph, path: str) -> None:
        for op in graph.get_operations():
            kind = op.type
            if kind in ("Placeholder", "NoOp"):
                continue
            if kind in _REFUSED or op.node_def.attr["_XlaMustCompile"].b:
                msg = f"{op.name} ({kind}) cannot be lifted"
                raise GraphError(msg, "use by='layer'")
            if kind == "Const":
                array = tensor_util.MakeNdarray(op.get_attr("value"))
                out = op.outputs[0]
                name = f"constant_{len(self.values)}"
                name = self._value(out, name, out.shape, out.dtype, "const", grad=False)
                self.sources[name] = Source("constant", array)
            elif kind == "ReadVariableOp" and self._plain_read(op):
                self.of[id(op.outputs[0])] = self.of[id(op.inputs[0])]
                self.kept.append(op.outputs[0])
            elif kind in _CALLS:
                self._inline(op, path)
            else:
                self._node(op, path)

    def _plain_read(self, op: tf.Operation) -> bool:
        """Return whether a read gives the variable's value at any time: nobody assigns to it."""
        source = self.sources.get(self.of[id(op.inputs[0])])
        found = source is not None and source.kind == "variable"
        return found and self.of[id(op.inputs[0])] not in self._written_names()

    def _written_names(self) -> set[str]:
        return {self.of[key] for key in self.written if key in self.of}

    def _inline(self, op: tf.Operation, path: str) -> None:
        function = op.graph._get_function(op.get_attr("f").name)
        inner = function.graph
        for outer, tensor in zip(op.inputs, inner.inputs, strict=True):
            self.of[id(tensor)] = self.of[id(outer)]
            self.kept.append(tensor)
        owner = self._owner(op)
        self._ops(inner, path or (owner.path if owner else ""))
        for outer, tensor in zip(op.outputs, inner.outputs, strict=True):
            self.of[id(outer)] = self.of[id(tensor)]
            self.kept.append(outer)

    def _owner(self, op: tf.Operation) -> Any:
        return self.shared.owners.get((id(op.graph), op.name))

    def _node(self, op: tf.Operation, path: str) -> None:
        target, inputs = _target(op), list(op.inputs)
        if target == SILU:
            inputs = inputs[len(op.outputs) - len(inputs[1:]) :][:2]
        owner = self._owner(op) or self.owner
        home = owner.path if owner is not None else path
        layer = owner.layer if owner is not None else None
        neutral = _neutral(target, layer)
        base = f"{home}/{neutral}" if home else neutral
        name = unique(self.prefix + base, self.shared.nodes)
        self.shared.nodes.add(name)
        names = tuple(self.of[id(t)] for t in inputs)
        handles = tuple(i for i, t in enumerate(inputs) if t.dtype == tf.resource)
        casts = castable_inputs(op) if target != SILU else (0, 1)
        bodies = self._bodies(op, name, owner)
        state = tuple(names[i] for i in handles if op.type != "ReadVariableOp")
        ordered = bool(op.op_def.is_stateful)
        self.owners[name] = layer
        outputs = self._outputs(op, target, name, names, casts)
        self.nodes[name] = Node(
            name,
            neutral,
            target,
            names,
            outputs,
            self._roles(op, target, names),
            home,
            type(layer).__name__ if layer is not None else "",
            kind="loop" if op.type in _LOOPS else "branch" if bodies else "op",
            state=state,
            order=self.order if ordered else -1,
            graphs=tuple(body.graph for body in bodies),
            settings=_settings(op),
            keeps=tuple(i for i in range(len(names)) if i not in casts),
            fixed=not casts or op.type == "Cast",
            exact=op.type != "Cast",
        )
        self.order += ordered
        self.calls[name] = Call(op, names, handles, bodies)

    def _roles(self, op: tf.Operation, target: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return what each input is: a variable by its own name, others as the operation says."""
        given = ["features", "beta"] if target == SILU else _argument_names(op)
        roles: list[str] = []
        for name, argument in zip(names, given, strict=True):
            own = self.values[name].kind in ("param", "buffer")
            roles.append(unique(name.rpartition(".")[2] if own else argument, roles))
        return tuple(roles)

    def _outputs(
        self,
        op: tf.Operation,
        target: str,
        name: str,
        names: tuple[str, ...],
        casts: tuple[int, ...],
    ) -> tuple[str, ...]:
        grad = any(self.values[n].grad for n in names) or op.type == "ReadVariableOp"
        found = []
        for i, tensor in enumerate(op.outputs[:1] if target == SILU else op.outputs):
            title = f"{name}:{i}" if i else name
            flows = grad and tensor.dtype.is_floating and op.type != "StopGradient"
            title = self._value(tensor, title, tensor.shape, tensor.dtype, "result", grad=flows)
            found.append(title)
        if target == SILU:
            for tensor, read in zip(op.outputs[1:], names, strict=False):
                self.of[id(tensor)] = read
                self.kept.append(tensor)
        return tuple(found)

    def _bodies(self, op: tf.Operation, name: str, owner: Any) -> tuple[Piece, ...]:
        if op.type in _LOOPS:
            graphs, given = [body_of(op, key, 0) for key in ("cond", "body")], list(op.inputs)
        elif op.type in _BRANCHES:
            graphs = [body_of(op, key, 1) for key in ("then_branch", "else_branch")]
            given = list(op.inputs)[1:]
        else:
            return ()
        pieces = []
        for key, graph in zip(("0", "1"), graphs, strict=True):
            sources = {}
            for number, (tensor, outer) in enumerate(zip(graph.inputs, given, strict=True)):
                source = self.sources.get(self.of[id(outer)])
                known = source is not None and source.kind == "variable"
                sources[id(tensor)] = source if known else Source("input", number)
            body = _Body(self.shared, graph, sources, graph.outputs, f"{name}[{key}]/", owner)
            pieces.append(body.piece())
        return tuple(pieces)


def _argument_names(op: tf.Operation) -> list[str]:
    return [
        f"{argument.name}[{i}]"
        if argument.number_attr or argument.type_list_attr
        else argument.name
        for argument, at in grouped(op)
        for i in range(len(at))
    ]


def body_of(op: tf.Operation, key: str, skip: int) -> Any:
    """Return the graph of a branch or loop; ``skip`` inputs are not handed on to it."""
    shapes = [t.shape for t in list(op.inputs)[skip:]]
    return control_flow_util_v2.get_func_graph(op, shapes, op.get_attr(key).name)


def _written(graph: tf.Graph) -> set[int]:
    """Return ids of the handles that something in a graph may assign to."""
    found: set[int] = set()
    for op in graph.get_operations():
        if op.type == "ReadVariableOp" or op.type.startswith("ResourceGather"):
            continue
        found.update(id(t) for t in op.inputs if t.dtype == tf.resource)
    return found


def _target(op: tf.Operation) -> str:
    """Return the kind of an operation; refuse gradients that are written by hand."""
    mark = op.node_def.attr["_gradient_op_type"].s.decode()
    if op.type != "IdentityN" or not mark:
        return str(op.type)
    for function in _functions(tf_ops.gradient_registry.lookup(mark), 3):
        key = function.__module__, function.__qualname__.partition(".")[0]
        if key in _KNOWN_GRADIENTS:
            return _KNOWN_GRADIENTS[key]
    msg = (
        f"{op.name} has a gradient written by hand (tf.custom_gradient, rematerialization), which "
        "a graph cannot carry"
    )
    raise GraphError(msg, "use by='layer'")


def _functions(function: Any, depth: int) -> list[Any]:
    """Return a function and those that it closes over."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = [cell for cell in cells if inspect.isfunction(cell)] if depth else []
    return [function, *(found for each in inner for found in _functions(each, depth - 1))]


def _neutral(target: str, layer: Any) -> str:
    """Return the neutral op: that of the layer, where an operation is a part of one."""
    found = target if target == SILU else neutral_op("tf", target)
    category, op = kind_of(layer) if layer is not None else ("", "")
    if category == "norm" and target not in OPS.moves:
        return op or found or target
    if category == "linear" and found in _LINEAR:
        return "linear"
    return found or target


def _settings(op: tf.Operation) -> dict[str, Any]:
    found = {}
    for key in op.node_def.attr:
        if key.startswith("_") or op.node_def.attr[key].WhichOneof("value") not in "sifb":
            continue
        value = op.get_attr(key)
        found[key] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return found
