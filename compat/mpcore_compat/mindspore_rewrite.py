"""The names of a rewriting API sketched for MindSpore, on the graph of any backend that lifts.

MindSpore's own ``mindspore.rewrite`` has none of them. Where the sketch leaves something open:

- A rule is a function of a node. What it changes on the node holds; it returns None or the nodes
  that are there now, and a node that is not among them is taken out.
- ``rewrite`` returns a new model with the same parameters; the given one stays as it is. Rules run
  at its first forward pass, or at once where an example is given.
- ``MixedPrecisionHelper`` takes its lists in the sketch's sense: what is *white* stays float32 even
  inside of a float16 part, what is *black* is lowered even inside of a float32 part. In
  ``mindspore.amp`` it is the other way round: white is lowered there.
- ``ParallelOptimizer`` writes down strategies. Nothing reads them.
- Gradients are no nodes: ``node.grad()`` raises. ``node.output = clip_gradient(node.output)``
  bounds one.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Any

from mpcore.backend.backend import find_backend
from mpcore.errors import GraphError, MpcoreError
from mpcore.graph import clip, edit
from mpcore.graph.deciding import Word
from mpcore.graph.lifting import fold_batch_norm
from mpcore.graph.part import GRAPH, Changed
from mpcore.graph.pattern import Chain, Opt, P, match
from mpcore.numerics import ops
from mpcore.numerics.dtypes import FORMATS, is_low, parse_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mpcore.graph.ir import Node as GraphNode

__all__ = [
    "FOLD",
    "MixedPrecisionHelper",
    "Node",
    "NodeType",
    "Output",
    "ParallelOptimizer",
    "PatternEngine",
    "ScopedValue",
    "SymbolicEngine",
    "clip_gradient",
    "deepcopy",
    "pattern",
    "rewrite",
]

FOLD = "fold"
"""As a replacement in ``PatternEngine``: fold the batch normalisation into what is before it."""


class NodeType(Enum):
    """What a node is, by its neutral op; ``Other`` for ops without a member."""

    Add = "add_sub"
    Attention = "attention"
    AvgPool = "avg_pool"
    BatchNorm = "batch_norm"
    Conv1d = "conv1d"
    Conv2d = "conv2d"
    Conv3d = "conv3d"
    ConvTranspose = "conv_transpose"
    Dense = "linear"
    Dropout = "dropout"
    Embedding = "embedding"
    GELU = "gelu"
    GroupNorm = "group_norm"
    LSTM = "lstm_cell"
    LayerNorm = "layer_norm"
    MatMul = "matmul"
    MaxPool = "max_pool"
    Mul = "mul_div"
    ReLU = "relu"
    Reshape = "reshape_transpose"
    Sigmoid = "sigmoid"
    Softmax = "softmax"
    Tanh = "tanh"
    Other = ""


class ScopedValue:
    """A value by its name."""

    def __init__(self, name: str) -> None:
        """Know the name."""
        self.name = name

    @classmethod
    def create_name_value(cls, name: str) -> ScopedValue:
        """Return the value of that name."""
        return cls(name)


class _Draft:
    """A graph while rules change it."""

    def __init__(self, given: Changed, model: Any) -> None:
        self.graph, self.model = given.graph, model
        self.words = dict(given.words)
        self.copy_of: tuple[_Draft, Any, Any] | None = None

    def copy(self) -> _Draft:
        """Return a draft of its own, equal to this one."""
        made = _Draft(Changed(self.graph, dict(self.words)), self.model)
        made.copy_of = (self, self.graph, dict(self.words))
        return made

    def take(self, made: _Draft) -> None:
        """Become what a copy of this was made into.

        Raises:
            GraphError: it is no copy of this as it is now.
        """
        if made.copy_of is None or made.copy_of[0] is not self:
            msg = "a rule must return nodes of the graph that it is given, or copies of them"
            raise GraphError(msg)
        if made.copy_of[1] is not self.graph or made.copy_of[2] != self.words:
            msg = (
                "a rule must change a node or a copy of it, not both: what came after the copy "
                "would be lost; change the node that is returned"
            )
            raise GraphError(msg)
        self.graph, self.words = made.graph, made.words

    def changed(self) -> Changed:
        words = {name: word for name, word in self.words.items() if name in self.graph.node}
        named = [(name, d) for name, w in words.items() for d in (w.compute, w.output)]
        low = {dtype: name for name, dtype in named if dtype in FORMATS and is_low(dtype)}
        if len(low) > 1:
            (one, first), (other, second) = sorted(low.items())
            msg = (
                f"nodes must be lowered to one 16-bit dtype, got {one} for {first!r} and {other} "
                f"for {second!r}; name one of them"
            )
            raise GraphError(msg)
        return Changed(self.graph, words, next(iter(low), "float16"))

    def nodes(self) -> list[Node]:
        return [Node(self, node.name) for node in self.graph.nodes]

    def layer(self, path: str) -> Any:
        return GRAPH.of(find_backend(self.model)).find(self.model, path)


class Output:
    """What a node makes, with what is to be put behind it.

    Attributes:
        dtype: what it is in the model, without casts.
        name: of the value.
    """

    def __init__(self, draft: _Draft, node: str, then: tuple[tuple[str, Any], ...] = ()) -> None:
        """Know the node; ``then`` is what is put behind it, in order."""
        self._draft, self.node, self.then = draft, node, then

    @property
    def name(self) -> str:
        """Name of the value."""
        return self._draft.graph.node[self.node].outputs[0]

    @property
    def dtype(self) -> str:
        """What it is without casts, but for those of ``astype``."""
        casts = [what for kind, what in self.then if kind == "cast"]
        return casts[-1] if casts else self._draft.graph.value[self.name].dtype

    def astype(self, dtype: object) -> Output:
        """Return it as another dtype; to be assigned to ``node.output``."""
        return Output(self._draft, self.node, (*self.then, ("cast", parse_dtype(dtype))))


def clip_gradient(
    output: Output, *, norm: float | None = None, value: float | None = None
) -> Output:
    """Return the output with its gradient clipped; to be assigned to ``node.output``."""
    clip.check_bound(norm, value)
    return Output(output._draft, output.node, (*output.then, ("clip", (norm, value))))


class Node:
    """One call; members of the layer that makes it can be read, and ``isinstance`` asks for it.

    Where a backend adds the bias of a layer by a call of its own, both are one node to a rule for
    the layer: ``to_float``, ``output``, ``state`` and who reads it are those of both.
    """

    def __init__(self, draft: _Draft, name: str) -> None:
        """Know the graph and the node in it."""
        vars(self).update(_draft=draft, _name=name)

    @property  # type: ignore[misc]  # read-only: it is what isinstance asks for
    def __class__(self) -> type:
        """The class of the layer whose call this is."""
        layer = self._layer()
        return Node if layer is None else type(layer)

    def _layer(self) -> Any:
        node = self._own
        layer = self._draft.layer(node.path)
        return layer if type(layer).__name__ == node.layer else None

    @property
    def _own(self) -> GraphNode:
        found: GraphNode = self._draft.graph.node[self._name]
        return found

    @property
    def _last(self) -> GraphNode:
        """The call that adds the bias of the same layer, if there is one, else its own."""
        graph, own = self._draft.graph, self._own
        users = {user.name: user for name in own.outputs for user in graph.users[name]}
        (user,) = users.values() if len(users) == 1 else (own,)
        return user if _adds_bias(user, own) else own

    @property
    def _first(self) -> Node:
        """The call whose bias this one adds, if it does, else itself."""
        own, producer = self._own, self._draft.graph.producer
        before = producer.get(own.inputs[0]) if own.inputs else None
        if before is None or not _adds_bias(own, before):
            return self
        made = Node(self._draft, before.name)
        return made if made._last.name == own.name else self

    def __getattr__(self, name: str) -> Any:
        """Return a member of the layer, such as ``in_channels``."""
        layer = None if name.startswith("__") else self._layer()
        if layer is None or not hasattr(layer, name):
            msg = f"node {self._name!r} has no {name!r}"
            raise AttributeError(msg)
        return getattr(layer, name)

    @property
    def name(self) -> str:
        """Its name in the graph; can be set."""
        return str(self._name)

    @name.setter
    def name(self, name: str | ScopedValue) -> None:
        draft = self._draft
        name = name.name if isinstance(name, ScopedValue) else name
        if not isinstance(name, str) or not name:
            msg = f"`name` of {self._name!r} must be a text or a ScopedValue, got {name!r:.80}"
            raise GraphError(msg)
        draft.graph = edit.rename(draft.graph, self._name, name)
        if self._name in draft.words:
            draft.words[name] = draft.words.pop(self._name)
        vars(self)["_name"] = name

    def get_node_type(self) -> NodeType:
        """Return what it is."""
        known = {member.value: member for member in NodeType}
        return known.get(self._own.op, NodeType.Other)

    def get_users(self) -> list[Node]:
        """Return the nodes that read what it makes."""
        graph = self._draft.graph
        found = {u.name: u for name in self._last.outputs for u in graph.users[name]}
        return [Node(self._draft, name) for name in found]

    def get_inputs(self) -> list[Node]:
        """Return the nodes whose results it reads."""
        producer, first = self._draft.graph.producer, self._first._own
        names = dict.fromkeys(producer[n].name for n in first.inputs if n in producer)
        return [Node(self._draft, name)._first for name in names]

    def to_float(self, dtype: object) -> Node:
        """Let it compute in ``dtype``."""
        named = parse_dtype(dtype)
        for name in (self._name, self._last.name):
            self._draft.words[name] = Word(named, "", f"to_float({named})")
        return self

    @property
    def output(self) -> Output:
        """What it makes; set to ``clip_gradient`` or ``astype`` of it, that is put behind."""
        return Output(self._draft, self._last.name)

    @output.setter
    def output(self, output: Output) -> None:
        draft, name = self._draft, self._last.name
        own = isinstance(output, Output) and output._draft is draft and output.node == name
        if not own or not output.then:
            msg = (
                f"`output` of {self._name!r} must be set to clip_gradient(node.output, ...) or "
                "node.output.astype(dtype)"
            )
            raise GraphError(msg)
        for kind, what in output.then:
            last = draft.graph.node[name]
            if kind == "clip":
                norm, value = what
                draft.graph = clip.clip_gradient(draft.graph, [last], norm=norm, value=value)
                name = draft.graph.users[last.outputs[0]][0].name
            else:
                before = draft.words.get(name, Word("follow", "", ""))
                draft.words[name] = replace(before, output=what, why=f"astype({what})")

    @property
    def state(self) -> dict[str, Any]:
        """Parameters and buffers that it reads, by role: the framework's own tensors."""
        own, last, kinds = self._own, self._last, ("param", "buffer")
        values = self._draft.graph.value
        pairs = zip((*own.roles, *last.roles), (*own.inputs, *last.inputs), strict=True)
        return {role: self._draft.layer(name) for role, name in pairs if values[name].kind in kinds}

    def has_grad(self) -> bool:
        """Return whether a gradient flows into what it makes."""
        return any(self._draft.graph.value[name].grad for name in self._last.outputs)

    def grad(self) -> Any:
        """Raise GraphError: gradients are no nodes."""
        msg = (
            f"the gradient of {self._name!r} is no node of the graph; "
            "`node.output = clip_gradient(node.output, norm=...)` bounds it"
        )
        raise GraphError(msg)

    @property
    def strategy(self) -> Any:
        """How it is split over devices; carried, and read by nobody."""
        return self._own.strategy

    @strategy.setter
    def strategy(self, strategy: Any) -> None:
        draft, own = self._draft, self._own
        changed = replace(own, strategy=strategy)
        draft.graph = edit.replace_node(draft.graph, own.name, changed)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what a node has; nothing else."""
        if name not in ("name", "output", "strategy"):
            msg = f"`{name}` of a node cannot be set; name, output and strategy can"
            raise GraphError(msg)
        object.__setattr__(self, name, value)


def deepcopy(node: Node) -> Node:
    """Return an equal node of a graph of its own: to keep what it was, or to change and return."""
    return Node(node._draft.copy(), node.name)


def _adds_bias(node: GraphNode, before: GraphNode) -> bool:
    return (
        (node.op, before.op != _BIAS) == (_BIAS, True)
        and node.path == before.path
        and node.layer == before.layer != ""
        and node.inputs[0] in before.outputs
    )


def pattern(kind: Any) -> Callable[[Callable[[Node], Any]], Callable[[Node], Any]]:
    """Return a decorator: the function is called for nodes of a kind alone.

    Args:
        kind: a class of layers, a ``NodeType``, or a neutral op.
    """
    _check_kind(kind)

    def decorate(function: Callable[[Node], Any]) -> Callable[[Node], Any]:
        def rule(node: Node) -> Any:
            meant = _is(node, kind) and node._first.name == node.name
            return function(node) if meant else node

        return rule

    return decorate


def _check_kind(kind: Any) -> None:
    """Raise GraphError for what is no kind, or is nearly the name of an op."""
    classes = isinstance(kind, type) and not issubclass(kind, Enum)
    known = [row.name for row in ops.ops()]
    # An op that the table lacks goes by its framework's name: only what is nearly one is wrong.
    near = get_close_matches(kind, known, 1, 0.85) if isinstance(kind, str) else []
    if (near and kind not in known) or not (classes or isinstance(kind, (str, NodeType))):
        told = f"; do you mean {near[0]!r}?" if near else ""
        msg = f"a kind must be a class of layers, a NodeType or an op, got {kind!r:.80}{told}"
        raise GraphError(msg)


def _is(node: Node, kind: Any) -> bool:
    node = node if kind == _BIAS else node._first
    if isinstance(kind, type):
        return isinstance(node, kind) and _main(node)
    return node._own.op == (kind.value if isinstance(kind, NodeType) else kind)


def _main(node: Node) -> bool:
    """Return whether a call is the one that its layer is for: it reads the layer's parameters."""
    graph, own = node._draft.graph, node._own
    held = [n for n in graph.nodes if n.path == own.path]
    reads = [n for n in held if any(graph.value[i].kind == "param" for i in n.inputs)]
    return own.name in [n.name for n in reads or held]


class SymbolicEngine:
    """Rules that run over every node, in order."""

    def __init__(self) -> None:
        """Have no rule yet."""
        self.rules: list[Any] = []

    def add_rule(self, rule: Any) -> SymbolicEngine:
        """Add a function of a node, such as a ``ParallelOptimizer``, or a ``PatternEngine``.

        Returns:
            The engine.
        """
        if isinstance(rule, PatternEngine):
            rule.refuse_fold()
        elif isinstance(rule, type) or not callable(rule):
            msg = f"`rule` must be a function of a node or a PatternEngine, got {rule!r:.80}"
            raise GraphError(msg)
        self.rules.append(rule)
        return self

    def rewrite(self, net: Any, *example: Any) -> Any:
        """Return a model with the parameters of ``net`` whose graph the rules have changed."""
        return _changed(net, self.run, example)

    def run(self, draft: _Draft) -> None:
        """Run every rule over every node."""
        for rule in self.rules:
            if isinstance(rule, PatternEngine):
                rule.run(draft)
                continue
            for node in draft.nodes():
                if node._name in draft.graph.node:
                    _apply(rule, node)


def _changed(net: Any, run: Callable[[_Draft], None], example: tuple[Any, ...]) -> Any:
    def change(given: Changed) -> Changed:
        draft = _Draft(given, net)
        try:
            run(draft)
        except MpcoreError:
            raise
        except Exception as exc:  # whatever is in a rule
            msg = f"a rule raised {type(exc).__name__}: {exc}"
            raise GraphError(msg) from exc
        return draft.changed()

    return GRAPH.of(find_backend(net)).changed(net, change, example or None)


def _apply(rule: Callable[[Node], Any], node: Node) -> None:
    made = rule(node)
    if made is None:
        return
    kept = made if isinstance(made, (list, tuple)) else [made]
    if not all(type(each) is Node for each in kept):
        msg = f"a rule must return nodes or None, got {made!r:.80}"
        raise GraphError(msg)
    draft, made_here = node._draft, node._own.outputs
    copies = {id(each._draft): each._draft for each in kept if each._draft is not draft}
    for copied in copies.values():
        draft.take(copied)
    if made_here in [each._own.outputs for each in kept]:
        return
    for name in dict.fromkeys((node._last.name, node.name)):
        draft.graph = edit.remove(draft.graph, name)


class PatternEngine:
    """Patterns, and what is done where they fit."""

    def __init__(self, rules: Sequence[tuple[Any, Any]]) -> None:
        """Take (pattern, replacement) pairs.

        A pattern is a chain of ``mpcore.graph.P``, or a list of classes of layers, ``NodeType``
        and neutral ops; a replacement a function of the matched nodes, or ``FOLD``, which folds
        every normalisation that can be.
        """
        self.rules = [(found, made) for found, made in rules]
        for found, made in self.rules:
            _check_chain(found)
            if made != FOLD and not callable(made):
                msg = f"a replacement must be a function of nodes or FOLD, got {made!r:.80}"
                raise GraphError(msg)

    def rewrite(self, net: Any, *example: Any) -> Any:
        """Return a changed model; ``FOLD`` needs an example and a model for inference."""
        if [made for _, made in self.rules] == [FOLD]:
            return fold_batch_norm(net, *example)
        self.refuse_fold()

        return _changed(net, self.run, example)

    def refuse_fold(self) -> None:
        """Raise GraphError if something is folded, which makes another model."""
        if any(made == FOLD for _, made in self.rules):
            msg = "`FOLD` makes a model for inference: fold with an engine of its own"
            raise GraphError(msg)

    def run(self, draft: _Draft) -> None:
        """Do what is done, wherever a pattern fits."""
        for parts, replacement in self.rules:
            chain = _chain(parts, draft)
            for found in match(chain, draft.graph) if chain is not None else ():
                names = [node.name for label, node in found.nodes.items() if not _of_bias(label)]
                replacement([Node(draft, name) for name in names])


def _check_chain(found: Any) -> None:
    """Raise GraphError for what is no pattern."""
    if isinstance(found, Chain):
        return
    if not isinstance(found, (list, tuple)) or not found:
        what = "an empty list" if found == [] else f"{found!r:.80}"
        msg = f"`pattern` must be a chain of P or a list of kinds of nodes, got {what}"
        raise GraphError(msg)
    for kind in found:
        _check_kind(kind)


def _chain(found: Any, draft: _Draft) -> Chain | None:
    """Return a pattern as a chain; None where a kind is not in this graph."""
    if isinstance(found, Chain):
        return found
    chain = None
    for number, kind in enumerate(found):
        part = _part(kind, f"{number} {kind}", draft)
        if part is None:
            return None
        chain = part if chain is None else chain >> part
        if number < len(found) - 1:  # some backends add it by a call of its own
            chain = chain >> Opt(_BIAS, label=f"{number} {_BIAS}")
    return chain


def _part(kind: Any, label: str, draft: _Draft) -> Chain | None:
    if not isinstance(kind, type):
        return P(kind.value if isinstance(kind, NodeType) else kind, label=label)

    def is_one(own: GraphNode) -> bool:
        node = Node(draft, own.name)
        return node._first.name == own.name and _is(node, kind)

    chain = None
    for op in dict.fromkeys(own.op for own in draft.graph.nodes if is_one(own)):
        one = P(op, is_one, label=label)
        chain = one if chain is None else chain | one
    return chain


_BIAS = "bias_add"


def _of_bias(label: str) -> bool:
    number, _, op = label.partition(" ")
    return number.isdigit() and op == _BIAS


class MixedPrecisionHelper:
    """A rule: a part runs in 16 bits but for its white list, or in float32 but for its black one.

    White stays float32, black is lowered: the opposite of the words in ``mindspore.amp``.
    """

    def __init__(self, dtype: object = "float16", *, lower: bool = True) -> None:
        """Lower what is on no list to ``dtype``, or keep it float32 where ``lower`` is False."""
        self.dtype, self.lower = parse_dtype(dtype), lower
        if not is_low(self.dtype):
            msg = f"`dtype` must have 16 bits, got {self.dtype!r}"
            raise GraphError(msg)
        self.white: tuple[Any, ...] = ()
        self.black: tuple[Any, ...] = ()

    def set_white_list(self, kinds: Iterable[Any]) -> MixedPrecisionHelper:
        """Keep these float32, whatever they are inside of."""
        return self._set(kinds, self.black)

    def set_black_list(self, kinds: Iterable[Any]) -> MixedPrecisionHelper:
        """Lower these, whatever they are inside of."""
        return self._set(self.white, kinds)

    def _set(self, white: Any, black: Any) -> MixedPrecisionHelper:
        self.white, self.black = (
            tuple(kinds) if isinstance(kinds, (list, tuple, set, frozenset)) else (kinds,)
            for kinds in (white, black)
        )
        for kind in (*self.white, *self.black):
            _check_kind(kind)
        twice = [kind for kind in self.white if kind in self.black]
        if twice:
            msg = f"a kind must be on one list, {twice[0]!r} is on the white and the black one"
            raise GraphError(msg)
        return self

    def __call__(self, node: Node) -> None:
        """Give a node its dtype."""
        if any(_is(node, kind) for kind in self.white):
            node.to_float("float32")
        elif self.lower or any(_is(node, kind) for kind in self.black):
            node.to_float(self.dtype)
        else:
            node.to_float("float32")


class ParallelOptimizer:
    """A rule that writes a strategy on nodes; nothing reads it."""

    def __init__(self, strategies: dict[Any, Any]) -> None:
        """Take strategies by kind of node."""
        for kind in strategies:
            _check_kind(kind)
        self.strategies = strategies

    def __call__(self, node: Node) -> None:
        """Write the strategy of its kind."""
        for kind, strategy in self.strategies.items():
            if _is(node, kind):
                node.strategy = strategy


class _Rewritten:
    """A function of (model, inputs) that runs on rewritten models.

    Attributes:
        model: the one that was rewritten last.
    """

    def __init__(self, engine: Any, function: Callable[..., Any]) -> None:
        self.engine, self.function = engine, function
        self.model: Any = None
        self._made: list[tuple[Any, Any]] = []

    def compile(self, model: Any = None, *inputs: Any) -> _Rewritten:
        """Rewrite ``model`` for these inputs; later calls with it use what was made.

        Without a model nothing is done yet: the first call with one rewrites it.
        """
        if model is None:
            return self
        self.model = self.engine.rewrite(model, *inputs)
        self._made = [pair for pair in self._made if pair[0] is not model]
        self._made.append((model, self.model))
        return self

    def __call__(self, model: Any, *inputs: Any) -> Any:
        """Run the function on what was made of ``model``, in the mode that ``model`` is in."""
        made = next((new for old, new in self._made if model is old or model is new), None)
        if made is None:
            made = self.compile(model, *inputs).model
        mode = getattr(model, "training", None)
        if isinstance(mode, bool) and made.training != mode:
            (made.set_train if hasattr(made, "set_train") else made.train)(mode)
        return self.function(made, *inputs)


def rewrite(engine: Any) -> Callable[[Callable[..., Any]], _Rewritten]:
    """Return a decorator for a function of (model, inputs): it runs on the rewritten model."""

    def decorate(function: Callable[..., Any]) -> _Rewritten:
        return _Rewritten(engine, function)

    return decorate
