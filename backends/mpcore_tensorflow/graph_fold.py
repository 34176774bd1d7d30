"""Batch normalisations of Keras folded into the products before them: a new model, for inference.

Keras writes one as ``x * scale + shift``, of which the last two depend on variables alone. Their
values are taken from a run of the graph; the product gets a kernel of its own for each call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from mpcore.errors import GraphError
from mpcore.graph.edit import remove, remove_dead, replace_node
from mpcore.graph.ir import Value, unique
from mpcore_tensorflow.graph_build import Built, values_of
from mpcore_tensorflow.graph_export import largest_difference, lifted_call, refuse_prepared
from mpcore_tensorflow.graph_forward import Lowering, layers_of
from mpcore_tensorflow.graph_lift import Source
from mpcore_tensorflow.graph_trace import Arguments, arguments_of, filled
from mpcore_tensorflow.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpcore.graph.ir import Graph, Node
    from mpcore_tensorflow.graph_run import Lowered

__all__ = ["Folded", "fold"]

_CHANNELS = {"Conv2D": -1, "Conv3D": -1, "MatMul": -1, "DepthwiseConv2dNative": -1}
_CHANNELS |= {"Conv2DBackpropInput": -2, "Conv3DBackpropInputV2": -2}
_BIASES = ("BiasAdd", "AddV2", "Add")
_KEEP_CHANNELS = ("Squeeze", "Reshape", "BatchToSpaceND", "Identity")
_OFF = 1e-3  # of the largest value: far more than rounding, far less than a wrong fold


def fold(model: keras.Model, example: Any, /) -> keras.Model:
    """Return a model whose batch normalisations are folded; see ``GraphPart.fold``."""
    refuse_prepared(model)
    args, kwargs = arguments_of(model, example)
    kwargs = {"training": False, **kwargs}
    lowered, _ = lifted_call(model, args, kwargs, Lowering(None, layers_of(model)))
    if any(node.graphs for node in lowered.piece.graph.nodes):
        msg = f"{type(model).__name__} must have no branch and no loop to be folded"
        raise GraphError(msg)
    tensors = Arguments(args, kwargs).tensors
    with left_alone(model, None):
        values = values_of(lowered.built, tensors)
        before = lowered.built.run(tensors)
    folder = _Folder(lowered.piece.graph, values)
    made = Folded(model, lowered, *folder.folded())
    pairs = zip(before, made.run(tensors), strict=True)
    off = float(np.max([0.0, *(largest_difference(np.array(a), np.array(b)) for a, b in pairs)]))
    if not off <= _OFF:
        msg = (
            f"`model` must not be folded: what comes out is off by {off:.1e} of its largest "
            "value (a variance near zero, or numbers that are not finite)"
        )
        raise GraphError(msg)
    return made


class Folded(keras.Model):  # type: ignore[misc]  # keras is not followed
    """Runs a folded graph; its variables are copies. For inference, called as the example was."""

    def __init__(
        self, original: keras.Model, lowered: Lowered, graph: Graph, new: dict[str, Any]
    ) -> None:
        """Take the folded graph and its new weights, and copy the variables that it reads."""
        super().__init__(name=f"{original.name}_folded")
        sources, copies = dict(lowered.piece.sources), {}
        for name in dict.fromkeys(name for node in graph.nodes for name in node.inputs):
            source = sources.get(name)
            array = new.get(name)
            if array is None and source is not None and source.kind == "variable":
                array = source.what.value()
            if array is not None:
                trains = graph.value[name].kind == "param"
                title = name.replace("/", ".")
                copies[name] = keras.Variable(array, trainable=trains, name=title)
                sources[name] = Source("variable", copies[name].value)
        self.copies = list(copies.values())
        piece = replace(lowered.piece, graph=graph, sources=sources)
        self.__dict__.update(run=Built(piece).run, traced=lowered.traced)
        self.built = True

    def call(self, *args: Any, training: bool = False, **kwargs: Any) -> Any:
        """Run the folded graph.

        Raises:
            GraphError: it is called in training, or in another way than the example.
        """
        tensors = Arguments(args, kwargs).tensors
        wanted = self.traced.inputs
        fits = len(tensors) == len(wanted) and all(
            a.dtype == b.dtype and b.shape.is_compatible_with(a.shape)
            for a, b in zip(tensors, wanted, strict=True)
        )
        if training or not fits:
            shapes = ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in wanted)
            msg = f"{self.name} must be called for inference, as the example was: {shapes}"
            raise GraphError(msg)
        return filled(self.traced, self.run(tensors))

    def get_config(self) -> dict[str, Any]:
        """Raise: its graph is no configuration of Keras."""
        msg = f"{self.name} cannot be saved by Keras: mp.export writes it as a SavedModel"
        raise NotImplementedError(msg)


class _Folder:
    """Folds what can be; ``values`` are those of one run, by name."""

    def __init__(self, graph: Graph, values: dict[str, Any]) -> None:
        self.start, self.graph, self.values = graph, graph, values
        self.new: dict[str, Any] = {}
        self.why: list[str] = []
        self.fixed = cache(self._fixed)

    def folded(self) -> tuple[Graph, dict[str, Any]]:
        """Return the folded graph, and the new weights by name."""
        for norm in self.start.nodes:
            if norm.op == "batch_norm" and norm.target in _BIASES and self._ends(norm):
                why = self._fold(norm)
                self.why += [f"{norm.path!r} must not be folded: {why}"] if why else []
        if not self.new:
            raise GraphError((*self.why, "`model` has no batch normalisation to fold")[0])
        return remove_dead(self.graph), self.new

    def _ends(self, norm: Node) -> bool:
        """Return whether a call is the last one of a normalisation."""
        users = self.start.users[norm.outputs[0]]
        return not any(user.op == "batch_norm" and user.path == norm.path for user in users)

    def _fixed(self, name: str) -> bool:
        """Return whether a value depends on variables and constants alone."""
        if self.start.value[name].kind == "input":
            return False
        maker = self.start.producer.get(name)
        return maker is None or (maker.pure and all(map(self.fixed, maker.inputs)))

    def _fold(self, norm: Node) -> str:
        """Fold one; return why not, ``""`` where it was."""
        graph = self.start
        shifts = [name for name in norm.inputs if self.fixed(name)]
        scaled = graph.producer.get(next((n for n in norm.inputs if n not in shifts), ""))
        if len(shifts) != 1 or scaled is None or scaled.target != "Mul":
            return "its statistics are those of each batch while it trains; call it for inference"
        scales = [name for name in scaled.inputs if self.fixed(name)]
        if len(scales) != 1:
            return "its statistics are those of each batch while it trains; call it for inference"
        data = next(name for name in scaled.inputs if name not in scales)
        chain = list(_before(graph, data))
        product = chain[-1] if chain else None
        if product is None or product.target not in _CHANNELS:
            return f"{data!r} before it is made by no convolution or linear layer"
        for node in (*chain, scaled):
            read = graph.users[node.outputs[0]]
            if len(read) != 1 or node.outputs[0] in graph.outputs:
                names = ", ".join(user.name for user in read) or "the model's output"
                return f"{node.name!r} before it is read by {names} too"
        biases = [node for node in chain[:-1] if node.target in _BIASES]
        kernel = product.inputs[1]
        needed = [kernel, *(name for node in biases for name in _added(node, chain))]
        if not all(map(self.fixed, needed)):
            return f"the weights of {product.name!r} depend on what comes in"
        channels = graph.value[data].shape[-1]
        scale, shift = (self._vector(name, channels) for name in (scales[0], shifts[0]))
        added = [self._vector(name, channels) for name in needed[1:]]
        if scale is None or shift is None or any(each is None for each in added):
            return "its channels are not the last dimension"
        weight = _scaled(self.values[kernel], product, scale)
        if weight is None:
            return f"{product.name!r} has a kernel of another layout"
        moved = shift + scale * sum(each for each in added if each is not None)
        self._put(norm, product, biases, data, weight, moved)
        return ""

    def _vector(self, name: str, channels: int | None) -> Any:
        array = np.asarray(self.values[name], np.float64)
        whole = array.size == channels and array.ndim > 0 and array.shape[-1] == channels
        return array.reshape(-1) if whole else None

    def _put(
        self,
        norm: Node,
        product: Node,
        biases: list[Node],
        data: str,
        weight: Any,
        moved: Any,
    ) -> None:
        graph = self.graph
        names = []
        for part, array in (("kernel", weight), ("bias", moved.astype(weight.dtype))):
            stem = f"{product.path}.{part}" if product.path else part
            name = unique(stem, {value.name for value in graph.values})
            value = Value(name, array.shape, str(array.dtype), "param")
            graph = graph.changed(values=(*graph.values, value), inputs=(*graph.inputs, name))
            self.new[name] = array
            names.append(name)
        inputs = (product.inputs[0], names[0], *product.inputs[2:])
        graph = replace_node(graph, product.name, replace(product, inputs=inputs))
        ends = replace(norm, op="bias_add", inputs=(data, names[1]), roles=("value", "bias"))
        graph = replace_node(graph, norm.name, ends)
        for bias in biases:
            graph = remove(graph, bias.name)
        self.graph = graph


def _before(graph: Graph, name: str) -> Iterator[Node]:
    """Yield what made a value, up to the product: the calls between add, or move, alone."""
    while (node := graph.producer.get(name)) is not None:
        yield node
        last = [graph.value[n].shape[-1:] for n in (node.inputs[0], node.outputs[0])]
        moves = node.target in _KEEP_CHANNELS and last[0] == last[1] != (None,)
        if node.target in _CHANNELS or not (moves or node.target in _BIASES):
            return
        name = node.inputs[0]


def _added(node: Node, chain: list[Node]) -> list[str]:
    made = {out for each in chain for out in each.outputs}
    return [name for name in node.inputs if name not in made]


def _scaled(kernel: Any, product: Node, scale: Any) -> Any:
    """Return a kernel times a number for each channel that comes out; None where none fits."""
    settings, axis = product.settings, _CHANNELS[product.target]
    array = np.asarray(kernel)
    if settings.get("transpose_b") or settings.get("data_format", "NHWC")[1:2] == "C":
        return None
    shape = [1] * array.ndim
    if product.target == "DepthwiseConv2dNative":
        shape[-2:] = array.shape[-2:]
    else:
        shape[axis] = array.shape[axis]
    if int(np.prod(shape)) != scale.size:
        return None
    return (array * scale.reshape(shape)).astype(array.dtype)
