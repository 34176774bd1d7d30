"""What a Keras model would run under a plan, and multiply: traced before it is prepared.

Dtype policies and calls are changed for the time of a trace and put back as the very objects they
were; variables are not touched, nothing runs.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from tensorflow.python.framework import tensor_util

from mpcore.errors import BackendError, GraphError
from mpcore.graph.part import as_arguments
from mpcore.policy.coverage import Products, in_layers
from mpcore.tools.inspection.trace import neutral_op
from mpcore_tensorflow.casting import apply_plan, is_prepared
from mpcore_tensorflow.graph_lift import body_of
from mpcore_tensorflow.graph_plan import device_type
from mpcore_tensorflow.graph_trace import Arguments, trace
from mpcore_tensorflow.layers import check_model
from mpcore_tensorflow.recorder import as_inputs, record
from mpcore_tensorflow.tap import OPS
from mpcore_tensorflow.trial import NoGuard, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.policy.plan import Plan
    from mpcore.tools.inspection.dtypes import Dtypes
    from mpcore.tools.inspection.recorder import Outcome
    from mpcore_tensorflow.graph_trace import Owner, Traced

__all__ = ["dry_run", "products"]


def products(model: keras.Model, plan: Plan, example: Any) -> list[Products]:
    """Return what a training forward pass under ``plan`` multiplies, in which dtypes.

    Raises:
        BackendError: the call cannot be traced, or does not tell its sizes.
    """
    try:
        with _planned(model, plan):
            args, named = as_arguments(example)
            return _work(model, plan, as_inputs(model, args), named)
    except GraphError as exc:
        raise BackendError(exc.why) from exc  # the way out of by="graph" is none here


def dry_run(
    model: keras.Model, plan: Plan, batch: tuple[Any, ...], device: str, calls: Dtypes
) -> Outcome:
    """Tell ``calls`` what would run under ``plan``; see ``DryRun``.

    Raises:
        BackendError: it is another device than that of this process.
    """
    here = device_type().lower()
    if device.partition(":")[0].lower() not in ("", here):
        msg = f"`device` must be {here!r}: Keras traces for the devices at hand, got {device!r}"
        raise BackendError(msg)
    if len(batch) == 1 and isinstance(batch[0], (list, tuple)):
        batch = tuple(batch[0])
    with _planned(model, plan):
        outcome = record(model, None, batch, None, 1.0, calls)
        with contextlib.suppress(GraphError):  # then the multiply-adds are not told
            calls.works(_work(model, plan, as_inputs(model, batch), {}))
    return outcome


@contextlib.contextmanager
def _planned(model: keras.Model, plan: Plan) -> Iterator[None]:
    check_model(model)
    if is_prepared(model):
        msg = "`model` must not be prepared to be foretold: mpcore.observe(amp, x) tells what runs"
        raise BackendError(msg)
    if plan.policy.by == "op":
        msg = "by='op' is not possible in tf.keras, which has no op list: use by='layer'"
        raise BackendError(msg)
    # Variables stay in float32: Keras casts them as it does where they are stored in 16 bits.
    layers = tuple(replace(e, param="float32" if e.param else "") for e in plan.layers)
    guard: Any = NoGuard()
    with kept(model):
        apply_plan(model, replace(plan, layers=layers), guard)
        yield


def _work(
    model: keras.Model, plan: Plan, args: tuple[Any, ...], named: dict[str, Any]
) -> list[Products]:
    arguments = Arguments(tuple(map(_narrow, args)), {k: _narrow(v) for k, v in named.items()})
    training = {} if "training" in named else {"training": True}
    traced = trace(model, partial(model, **training), arguments)
    return in_layers(plan, _calls(traced, traced.graph))


def _narrow(value: Any) -> Any:
    wide = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(np.float32) if wide else value


def _calls(traced: Traced, graph: Any, path: str = "", times: int | None = 1) -> Iterator[Products]:
    """Yield what each operation multiplies, those of functions, branches and loops too."""
    for op in _needed(graph):
        owner = traced.owners.get((id(graph), op.name))
        home = owner.path if owner is not None else path
        if op.type in COUNTS:
            count = COUNTS[op.type]
            known = all(t.shape.is_fully_defined() for t in (*op.inputs, *op.outputs))
            number = count(op) if count is not None and known else None
            if number is None or times is None:
                msg = f"how much {op.type} multiplies in {home or 'the model'} is not known"
                raise GraphError(msg)
            floats = [t.dtype.name for t in op.inputs if t.dtype.is_floating]
            yield Products(home, neutral_op("tf", op.type) or op.type, floats[0], number * times)
        else:
            for inner, often in _inside(op, owner, home):
                whole = None if often is None or times is None else often * times
                yield from _calls(traced, inner, home, whole)


def _inside(op: Any, owner: Owner | None, home: str) -> Iterator[tuple[Any, int | None]]:
    """Yield the graphs that an operation runs, and how often; None where that is not known."""
    if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        yield op.graph._get_function(op.get_attr("f").name).graph, 1
    elif op.type in ("While", "StatelessWhile"):
        # What it was traced as has the shapes of variables, the function that is called has not.
        yield getattr(op, "_body_graph", None) or body_of(op, "body", 0), _often(op, owner)
    elif op.type in ("If", "StatelessIf"):
        for key in ("then_branch", "else_branch"):
            yield body_of(op, key, 1), None
    elif any(value.HasField("func") for value in op.node_def.attr.values()):
        msg = f"what {op.type} runs in {home or 'the model'} is not known"
        raise GraphError(msg)


def _needed(graph: Any) -> list[Any]:
    """Return the operations that run: TensorFlow leaves out what no output needs."""
    left = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    found: dict[str, Any] = {}
    while left:
        op = left.pop()
        if op.name not in found:
            found[op.name] = op
            left += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return [op for op in graph.get_operations() if op.name in found]


def _often(op: Any, owner: Owner | None) -> int | None:
    """Return how often a loop runs; None where that is not known: others may end before."""
    if owner is None or not isinstance(owner.layer, keras.layers.RNN):
        return None
    most = op.inputs[1].op
    known = tensor_util.constant_value(most.inputs[0] if most.type == "Max" else most.outputs[0])
    return int(np.max(known)) if known is not None and np.max(known) > 0 else None


def _size(tensor: Any) -> int:
    return int(tensor.shape.num_elements())


def _product(sizes: Any) -> int:
    return int(math.prod(sizes))


def _matmul(op: Any) -> int:
    turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _size(op.outputs[0]) * int(op.inputs[0].shape[-2 if turned else -1])


def _convolution(op: Any) -> int:
    return _size(op.outputs[0]) * _product(op.inputs[1].shape[:-1])


def _turned(op: Any) -> int:
    return _size(op.inputs[2]) * _product(op.inputs[1].shape[:-1])


def _depthwise(op: Any) -> int:
    return _size(op.outputs[0]) * _product(op.inputs[1].shape[:2])


def _einsum(op: Any) -> int | None:
    """Every pair of numbers that meet: the result, times what is summed over."""
    given, _, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
    terms, sizes = given.split(","), dict[str, int]()
    for term, tensor in zip(terms, op.inputs, strict=True):
        before, dots, after = term.partition("...")
        sizes |= dict(zip(before, tensor.shape, strict=False))
        if dots and after:
            sizes |= dict(zip(after, tensor.shape[-len(after) :], strict=True))
    if len(terms) != 2:
        return 0 if len(terms) == 1 else None
    return _size(op.outputs[0]) * math.prod(n for c, n in sizes.items() if c not in result)


COUNTS: dict[str, Callable[[Any], int | None] | None] = {
    **dict.fromkeys((*OPS.products, "SparseMatMul", "SparseTensorDenseMatMul"), None),
    **dict.fromkeys(("PyFunc", "EagerPyFunc", "Case", "StatelessCase"), None),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _turned),
    "DepthwiseConv2dNative": _depthwise,
    "Einsum": _einsum,
}
"""How many an operation does; None where nobody knows."""
