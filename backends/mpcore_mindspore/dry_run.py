"""What a network would run under a plan, and multiply: tried before it is prepared.

Casts are put on the network for the time of one compilation (multiply-adds) or one eager batch
(``explain`` with an example), and taken off again; Parameters and statistics stay what they were.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import mindspore as ms

from mpcore.backend.backend import find_backend
from mpcore.errors import BackendError, GraphError
from mpcore.graph.flow import widest
from mpcore.graph.ir import is_float
from mpcore.graph.part import as_arguments
from mpcore.numerics.dtypes import is_low
from mpcore.policy.coverage import Products, in_layers
from mpcore_mindspore.casting import apply_plan, check_plan, emulated_parameters, native_of
from mpcore_mindspore.graph_lift import piece_of
from mpcore_mindspore.graph_trace import Arguments, trace
from mpcore_mindspore.kernels import VIEWS
from mpcore_mindspore.recorder import record
from mpcore_mindspore.release import Original, original_of
from mpcore_mindspore.tap import OPS
from mpcore_mindspore.trial import rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mindspore import nn

    from mpcore.graph.ir import Graph, Node, Value
    from mpcore.policy.plan import Plan
    from mpcore.tools.inspection.dtypes import Dtypes
    from mpcore.tools.inspection.recorder import Outcome

__all__ = ["dry_run", "products"]


def products(model: nn.Cell, plan: Plan, example: Any) -> list[Products]:
    """Return what a training forward pass under ``plan`` multiplies, in which dtypes.

    Raises:
        BackendError: the call cannot be compiled, or does not tell its sizes.
    """
    try:
        with _planned(model, plan) as simulated:
            return _work(model, plan, simulated, *as_arguments(example))
    except GraphError as exc:
        raise BackendError(exc.why) from exc  # the way out of by="graph" is none here


def dry_run(
    model: nn.Cell, plan: Plan, batch: tuple[Any, ...], device: str, calls: Dtypes
) -> Outcome:
    """Tell ``calls`` what runs under ``plan``; see ``DryRun``.

    Raises:
        BackendError: it is another device than that of this process, or GRAPH_MODE.
    """
    here = str(ms.get_context("device_target"))
    if device.partition(":")[0].lower() not in ("", here.lower()):
        msg = f"`device` must be {here!r}: MindSpore runs on the device at hand, got {device!r}"
        raise BackendError(msg)
    with _planned(model, plan) as simulated:
        calls.simulated = simulated
        outcome = record(model, None, batch, None, 1.0, calls)
        with contextlib.suppress(GraphError):  # then the multiply-adds are not told
            calls.works(_work(model, plan, simulated, batch, {}))
    return outcome


@contextlib.contextmanager
def _planned(net: nn.Cell, plan: Plan) -> Iterator[str]:
    """Run ``net`` under ``plan``; yield the 16-bit dtype that float32 stands for, or ``""``."""
    if original_of(net) is not None:
        msg = "`model` must not be prepared to be foretold: mpcore.observe(amp, x) tells what runs"
        raise BackendError(msg)
    check_plan(net, plan, str(ms.get_context("device_target")))
    native = native_of(find_backend(net).capabilities(net))
    compute = plan.policy.compute
    emulated = is_low(compute) and compute not in native
    with contextlib.ExitStack() as stack:
        original = Original(net, ())
        stack.callback(original.put_back)
        apply_plan(net, plan, native, original)
        rounded(stack, emulated_parameters(net, plan, native))
        yield compute if emulated else ""


def _work(
    net: nn.Cell, plan: Plan, simulated: str, args: tuple[Any, ...], named: dict[str, Any]
) -> list[Products]:
    piece = piece_of(net, trace(net, Arguments(net, args, named)))
    return in_layers(plan, _calls(piece.graph, plan, simulated=bool(simulated)))


def _calls(graph: Graph, plan: Plan, *, simulated: bool) -> Iterator[Products]:
    """Yield what each primitive multiplies."""
    made = {name: node for node in graph.nodes for name in node.outputs}
    layers = {entry.path for entry in plan.layers if entry.category != "container"}
    for node in graph.nodes:
        if node.target not in COUNTS:
            continue
        values = [graph.value[name] for name in (*node.inputs, *node.outputs[:1])]
        count = COUNTS[node.target]
        if count is None or any(None in value.shape for value in values):
            msg = f"how much {node.target} multiplies in {node.path or 'the network'} is not known"
            raise GraphError(msg)
        floats = [value for value in values[: len(node.inputs)] if is_float(value.dtype)]
        dtypes = [value.dtype for value in floats]
        if simulated:
            came = floats
            if node.path in layers:  # whose Parameters hold rounded values while the network runs
                came = [value for value in floats if value.kind in ("result", "input")]
            dtypes = [_meant(graph, made, value) for value in came or floats]
        yield Products(node.path, node.op, widest(dtypes), count(node, values))


def _meant(graph: Graph, made: Mapping[str, Node], value: Value) -> str:
    """Return the dtype of what a value holds: of 16 bits if it was cast to that, and back."""
    node = made.get(value.name)
    if node is None or not node.inputs:
        return value.dtype
    before = graph.value[node.inputs[0]]
    if node.target == "P.Cast":
        return before.dtype if is_low(before.dtype) else value.dtype
    return _meant(graph, made, before) if node.target in _VIEWS else value.dtype


def _size(value: Value) -> int:
    return math.prod(size or 0 for size in value.shape)


def _matmul(node: Node, values: Sequence[Value]) -> int:
    first, settings = values[0], node.settings
    turned = settings.get("transpose_a") or settings.get("transpose_x1") or settings.get("arg2")
    last = first.shape[-2 if turned is True else -1] if first.shape else 0
    return _size(values[-1]) * (last or 0)


def _dense(node: Node, values: Sequence[Value]) -> int:
    del node
    return _size(values[-1]) * (values[0].shape[-1] or 0)


def _convolution(node: Node, values: Sequence[Value]) -> int:
    del node
    return _size(values[-1]) * math.prod(size or 0 for size in values[1].shape[1:])


def _turned(node: Node, values: Sequence[Value]) -> int:
    del node
    return _size(values[0]) * math.prod(size or 0 for size in values[1].shape[1:])


def _added(node: Node, values: Sequence[Value]) -> int:
    del node
    return _size(values[-1]) * (values[1].shape[-1] or 0)


_VIEWS = frozenset(f"P.{name}" for name in VIEWS)
_MATMULS = ("MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt", "Mm", "BMM")
_OTHERS = ("Addbmm", "Addmv", "Mv", "Einsum", "Dot", "Cdist", "ConvTranspose2D")
_TURNED = ("Conv2DTranspose", "Conv2DBackpropInput", "Conv3DTranspose")
COUNTS: dict[str, Callable[[Node, Sequence[Value]], int] | None] = {
    **dict.fromkeys((f"P.{name}" for name in (*OPS.products, *_OTHERS)), None),
    **dict.fromkeys((f"P.{name}" for name in _MATMULS), _matmul),
    **dict.fromkeys(("P.Dense", "P.Linear"), _dense),
    **dict.fromkeys(("P.Conv2D", "P.Conv3D", "P.Conv2DExt", "P.Conv1DExt"), _convolution),
    **dict.fromkeys((f"P.{name}" for name in _TURNED), _turned),
    **dict.fromkeys(("P.Addmm", "P.Baddbmm"), _added),
}
"""How many a primitive does, of its values the result is the last; None where nobody knows."""
