"""A graph and its plan run: the same operations, made anew, with casts between them."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import resource_variable_ops

from mpcore.errors import GraphError
from mpcore.graph.clip import CLIP
from mpcore_tensorflow import graph_casts
from mpcore_tensorflow.graph_facts import grouped
from mpcore_tensorflow.graph_lift import SILU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpcore.graph.ir import Cast, Graph, GraphPlan, Node
    from mpcore_tensorflow.graph_lift import Call, Piece, Source

__all__ = ["Built", "values_of"]


class Built:
    """A graph that can run, eagerly or while TensorFlow traces.

    Attributes:
        piece: what was lifted.
        graph: its graph, or one that was made of it.
        plan: where casts lie; None for none.
    """

    def __init__(
        self,
        piece: Piece,
        graph: Graph | None = None,
        plans: Mapping[str, GraphPlan] | None = None,
        key: str = "",
    ) -> None:
        """Find out where each cast is made.

        Args:
            piece: what was lifted.
            graph: the graph to run; the piece's own where it is None.
            plans: by the key of a graph, where casts lie: ``""`` for the whole, the name of a
                branch or loop and its number for bodies; None for no casts.
            key: of this one.
        """
        self.piece, self.graph = piece, graph or piece.graph
        self.plan = (plans or {}).get(key)
        self.before: dict[str, list[Cast]] = {}
        self.after: dict[str, list[Cast]] = {}
        at = {node.name: i for i, node in enumerate(self.graph.nodes)}
        for cast in self.plan.casts if self.plan is not None else ():
            if cast.place == "after producer":
                self.after.setdefault(cast.value, []).append(cast)
            else:
                first = min(cast.users, key=lambda name: at.get(name, len(at)))
                self.before.setdefault(first, []).append(cast)
        self.bodies = {
            name: [Built(b, None, plans, f"{name}[{i}]") for i, b in enumerate(call.bodies)]
            for name, call in piece.calls.items()
            if call.bodies and name in self.graph.node
        }

    def run(self, tensors: Sequence[Any], known: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the outputs for these inputs."""
        return _Run(self, tensors).outputs()


def values_of(built: Built, tensors: Sequence[Any]) -> dict[str, Any]:
    """Run a graph and return every value that it has, by name, but for those of its bodies."""
    run = _Run(built, tensors)
    run.outputs()
    return run.of


class _Run:
    """One run: the values so far, and casts that wait for their users."""

    def __init__(self, built: Built, tensors: Sequence[Any]) -> None:
        self.built, self.tensors = built, tensors
        self.of: dict[str, Any] = {}
        self.waiting: dict[tuple[str, str], list[Any]] = {}

    def outputs(self) -> list[Any]:
        graph = self.built.graph
        for node in graph.nodes:
            for cast in self.built.before.get(node.name, ()):
                self._cast(cast)
            self._node(node)
        for cast in self.built.before.get("", ()):
            self._cast(cast)
        return [self._read("", name) for name in graph.outputs]

    def _value(self, name: str) -> Any:
        if name not in self.of:
            self._made(name, self._sourced(self.built.piece.sources[name]))
        return self.of[name]

    def _sourced(self, source: Source) -> Any:
        if source.kind == "input":
            return self.tensors[source.what]
        if source.kind == "variable":
            return source.what.value()
        return tf.constant(source.what) if source.kind == "constant" else source.what

    def _made(self, name: str, tensor: Any) -> None:
        for cast in self.built.after.get(name, ()):
            tensor = graph_casts.cast(tensor, cast.dtype)
        self.of[name] = tensor

    def _cast(self, cast: Cast) -> None:
        source, count = self._value(cast.value), len(cast.users)
        if cast.fork:
            made = graph_casts.fork(source, cast.dtype, count)
        else:
            made = [graph_casts.cast(source, cast.dtype)] * count
        for user, tensor in zip(cast.users, made, strict=True):
            self.waiting.setdefault((user, cast.value), []).append(tensor)

    def _read(self, user: str, name: str) -> Any:
        casts = self.waiting.get((user, name))
        if not casts:
            return self._value(name)
        return casts[0] if user == "" else casts.pop(0)

    def _node(self, node: Node) -> None:
        call = self.built.piece.calls.get(node.name)
        if call is None:
            self._made(node.outputs[0], self._own(node))
            return
        inputs = [
            self._handle(node, name) if i in call.handles else self._read(node.name, name)
            for i, name in enumerate(node.inputs)
        ]
        made = self._call(node, call, inputs)
        for name, tensor in zip(node.outputs, made, strict=True):
            self._made(name, tensor)

    def _handle(self, node: Node, name: str) -> Any:
        what = self.built.piece.sources[name].what
        if isinstance(what, int):  # of a loop: a resource that is no variable
            return self.tensors[what]
        if isinstance(what, tf.Variable):
            if node.kind == "op":  # a tape is to know; bodies read theirs themselves
                resource_variable_ops.variable_accessed(what)
            return what.handle
        return what

    def _call(self, node: Node, call: Call, inputs: list[Any]) -> list[Any]:
        if node.kind == "loop":
            return self._loop(node, call, inputs)
        if node.kind == "branch":
            return self._branch(node, inputs)
        if node.target == SILU:
            return [tf.nn.silu(inputs[0], beta=inputs[1])]
        if node.target == "StopGradient":  # off the tape, which else adds up in another order
            return [tf.stop_gradient(inputs[0])]
        if node.target == "ReadVariableOp":
            return [self.built.piece.sources[node.inputs[0]].what.read_value()]
        return _make(call.op, inputs)

    def _own(self, node: Node) -> Any:
        """Return what a node that was put in makes."""
        if node.target != CLIP:
            msg = f"node {node.name!r} cannot be built: TensorFlow has no {node.target!r}"
            raise GraphError(msg)
        settings = node.settings.get("norm"), node.settings.get("value")
        return graph_casts.clip(self._read(node.name, node.inputs[0]), *settings)

    def _branch(self, node: Node, inputs: list[Any]) -> list[Any]:
        yes, no = self.built.bodies[node.name]
        found = tf.cond(
            tf.cast(inputs[0], tf.bool), lambda: yes.run(inputs[1:]), lambda: no.run(inputs[1:])
        )
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def _loop(self, node: Node, call: Call, inputs: list[Any]) -> list[Any]:
        condition, body = self.built.bodies[node.name]
        moves = _moving(body)
        shapes = [body.piece.shapes[i] for i in moves]

        def whole(state: Sequence[Any]) -> list[Any]:
            found = list(inputs)
            for i, tensor in zip(moves, state, strict=True):
                found[i] = tensor
            return found

        def once(*state: Any) -> list[Any]:
            made = body.run(whole(state))
            return [made[i] for i in moves]

        made = tf.while_loop(
            lambda *state: condition.run(whole(state))[0],
            once,
            [inputs[i] for i in moves],
            shape_invariants=shapes,
            parallel_iterations=call.op.get_attr("parallel_iterations"),
        )
        return whole(made)


def _moving(body: Built) -> list[int]:
    """Return what a loop carries; the rest is handed through as it is."""
    pairs = zip(body.piece.inputs, body.graph.outputs, strict=True)
    return [i for i, (came, went) in enumerate(pairs) if came != went]


@cache
def _function(kind: str) -> tuple[Any, dict[str, str]]:
    """Return what makes an operation, and its parameters by what the operation calls them."""
    function = getattr(tf.raw_ops, kind, None)
    if function is None:
        msg = f"{kind} cannot be built: TensorFlow has no function that makes it"
        raise GraphError(msg)
    definition = op_def_registry.get(kind)
    own = [arg.name for arg in (*definition.input_arg, *definition.attr)]
    names = [name for name in inspect.signature(function).parameters if name != "name"]
    # A few are called otherwise in Python, such as Squeeze's squeeze_dims: axis.
    renamed = [name for name in names if name not in own]
    lost = [arg.name for arg in definition.input_arg if arg.name not in names]
    lost += ["squeeze_dims"] if kind == "Squeeze" else []
    found = {name: name for name in names if name in own}
    return function, found | dict(zip(lost, renamed, strict=True))


def _make(op: Any, inputs: list[Any]) -> list[Any]:
    """Make an operation again with other inputs."""
    function, names = _function(op.type)
    given: dict[str, Any] = {}
    for arg, at in grouped(op):
        several = bool(arg.number_attr or arg.type_list_attr)
        given[names[arg.name]] = [inputs[i] for i in at] if several else inputs[at[0]]
    for name, called in names.items():
        if called not in given:
            given[called] = op.get_attr(name)
    made = function(**given)
    if made is None or isinstance(made, tf.Operation):
        return []
    return list(made) if isinstance(made, (list, tuple)) else [made]
