"""The proof of a graph: without casts it gives what the network gives, on its example."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, ops

from mpcore.errors import GraphError
from mpcore.graph.ir import is_float
from mpcore.graph.proof import difference, same
from mpcore_mindspore.graph_lift import Slot
from mpcore_mindspore.graph_run import Runner
from mpcore_mindspore.graph_source import cell_of, source_of
from mpcore_mindspore.graph_trace import UNTRACEABLE, Arguments, first_line
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import dtype_name, leaves
from mpcore_mindspore.snapshot import left_alone
from mpcore_mindspore.tap import tapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mindspore import nn

    from mpcore_mindspore.graph_run import Lowered, Lowering

__all__ = ["check_runs", "prove", "seeded"]

functions: Any = importlib.import_module("mindspore.ops.function.nn_func")
seeds: Any = importlib.import_module("mindspore.common.seed")  # by name it is a function

_NUMBER = count(1)


def prove(net: nn.Cell, plain: Lowering, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
    """Return the graph of one call of a network, which gives what the network gives.

    Masks of dropout are drawn from one seed on both sides; the graph that is returned has the
    network's own.

    Raises:
        GraphError: it does not, with what is the first to differ.
    """
    arguments = Arguments(net, args, kwargs)
    with left_alone(net, None), seeded():
        lowered = Runner(net, plain).lowered(arguments)
        # The cell is made anew for each run: so are the generators of what draws.
        again = cell_of(lowered.text, lowered.piece.params)
        seeds._KERNEL_SEED.clear()  # what draws without a Cell counts its calls, lifted or run
        try:
            own = _ran(net, net, arguments)
        except UNTRACEABLE as exc:
            msg = f"{type(net).__name__} does not run on `example`: {first_line(exc)}"
            raise GraphError(msg) from exc
    try:
        with left_alone(net, None):
            found = _ran(net, again, arguments)
    except UNTRACEABLE as exc:
        msg = f"the graph of {type(net).__name__} does not run: {first_line(exc)}; use by='layer'"
        raise GraphError(msg) from exc
    why = difference(own, found, "assigned buffers")
    if why:
        msg = (
            f"the graph of {type(net).__name__} does not give its own {why}; "
            f"{_first_difference(net, lowered, arguments)}. A count or a cache in Python, random "
            "numbers without a seed, ops.stop_gradient (the compiler drops it) cannot be lifted: "
            "use nn.Dropout for random numbers, or by='layer'"
        )
        raise GraphError(msg)
    return Runner(net, plain).lowered(arguments) if lowered.piece.random else lowered


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Let what draws without a Cell draw from a seed: ``ops.dropout``, attention.

    ``ops.dropout`` takes the seed of the process where one is set; ``ms.set_seed`` would seed
    numpy as well. ``left_alone`` puts the counts back.

    Source: mindspore/ops/function/nn_func.py of MindSpore 2.10.0, for ``_inner_dropout``.
    """
    seed, attention = seeds._GLOBAL_SEED, functions._inner_dropout
    seeds._GLOBAL_SEED = seed or 1
    seeds._KERNEL_SEED.clear()
    functions._inner_dropout = _drawing_from(next(_NUMBER))
    try:
        yield
    finally:
        seeds._GLOBAL_SEED, functions._inner_dropout = seed, attention


def _drawing_from(number: int) -> Any:
    """Return attention's dropout with a seed that no other one has: its primitives are kept."""

    def inner_dropout(x: Any, p: Any, training: Any) -> Any:
        drop = functions._get_cache_prim(ops.Dropout)(1 - p, 1, number)
        if 0.0 < p <= 1.0 and training:
            return drop(x)[0]
        return x

    return inner_dropout


def _ran(net: nn.Cell, run: Any, arguments: Arguments) -> tuple[list[Any], list[Any], list[Any]]:
    """Return outputs, what buffers hold then, and gradients."""
    weights = ParameterTuple([p for p in net.get_parameters() if p.requires_grad])
    outputs: list[Any] = []

    def total(*given: Any) -> Any:
        made = list(_tensors(run(*given)))
        outputs[:] = made
        floats = [_weighed(x) for x in made if is_float(dtype_name(x.dtype))]
        return sum(floats[1:], floats[0]) if floats else Tensor(0.0, ms.float32)

    with guarded():
        if len(weights) == 0:
            total(*arguments.values)
            grads: Any = ()
        else:
            grads = ms.value_and_grad(total, None, weights)(*arguments.values)[1]
    state = [p.asnumpy().copy() for p in net.get_parameters() if not p.requires_grad]
    return [x.asnumpy() for x in outputs], state, [g.asnumpy() for g in grads]


def _weighed(x: Any) -> Any:
    """Return one number in which each element of ``x`` counts another way."""
    weights = np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)
    return (x.astype(ms.float32) * Tensor(weights)).sum()


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _first_difference(net: nn.Cell, lowered: Lowered, arguments: Arguments) -> str:
    """Return in words which Cell is the first that makes what no call of the graph does there."""
    seen: list[tuple[str, Any]] = []
    paths = {id(cell): path for path, (cell, kind) in leaves(net).items() if kind != "container"}

    def around(cell: Any, run: Any, args: Any, kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        path = paths.get(id(cell))
        if path:
            seen.extend((path, x.asnumpy()) for x in list(_tensors(result))[:1])
        return result

    with left_alone(net, None), guarded(), tapped(around):
        net(*arguments.values)
    made = every_value(lowered, arguments)
    for path, array in seen:
        there = [a for name, a in made if lowered.piece.graph.node[name].path == path]
        if not any(same(array, a) for a in there):
            drawn = [n for n in lowered.piece.random if lowered.piece.graph.node[n].path == path]
            why = f", where {drawn[0]} draws from a generator without a seed" if drawn else ""
            return f"the first that differs is {path}{why}"
    nodes = lowered.piece.graph.nodes
    return f"its Cells do, what stands between them does not ({nodes[-1].name} is the last call)"


def every_value(lowered: Lowered, arguments: Arguments) -> list[tuple[str, Any]]:
    """Return the first result of every call, by name, as the graph makes it."""
    piece, plan, graph = lowered.piece, lowered.plan, lowered.graph
    nodes = [node for node in graph.nodes if node.outputs]
    names = tuple(node.outputs[0] for node in nodes)
    every = graph.changed(outputs=names)
    whole = replace(piece, result=tuple(Slot(name) for name in names))
    text = source_of(whole, every, plan and _without_output(plan, every))
    net = cell_of(text, piece.params)
    with guarded():
        made = net(*arguments.values)
    return [(node.name, x.asnumpy()) for node, x in zip(nodes, made, strict=True)]


def _without_output(plan: Any, graph: Any) -> Any:
    """Return a plan without casts of what the network returns."""
    left = ((cast, tuple(user for user in cast.users if user)) for cast in plan.casts)
    casts = tuple(replace(cast, users=users) for cast, users in left if users)
    return replace(plan, graph=graph, casts=casts)


def check_runs(net: nn.Cell, lowered: Lowered, arguments: Arguments) -> None:
    """Raise GraphError unless a graph with casts runs, and every call hands on what is planned."""
    plan = lowered.plan
    if plan is None:
        return
    try:
        with left_alone(net, None):
            made = every_value(lowered, arguments)
    except UNTRACEABLE as exc:
        msg = (
            f"{type(net).__name__} does not run with the casts of this policy: "
            f"{first_line(exc)}; keep that op in float32, for example 'full op=...'"
        )
        raise GraphError(msg) from exc
    cast = {c.value: c.dtype for c in plan.casts if c.place == "after producer"}
    for name, array in made:
        first = plan.graph.node[name].outputs[0]
        wanted = cast.get(first, plan.output.get(name, "-"))  # all that is seen of it is cast
        if is_float(wanted) and str(array.dtype) != wanted:
            msg = (
                f"{name!r} hands on {array.dtype}, where {wanted} was planned; a rule for it "
                f"says what it computes in: 'full path={name}'"
            )
            raise GraphError(msg)
