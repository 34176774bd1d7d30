"""Carry out a plan on a mindspore.nn.Cell, in place and leaf by leaf.

A native dtype is ``Cell.to_float``, which casts inputs and parameters at each call. Other casts
are a replaced ``construct`` on the instance, which eager mode, ``ms.jit`` and GRAPH_MODE all
run. No source is rewritten, so classes may live anywhere. A layer whose precision depends on
what comes in is run by a copy outside the network, over the same Parameters.

bfloat16 has no arithmetic on CPU. It is emulated: a lowered layer rounds its inputs and
outputs, and with them the gradients that flow back, around float32 operations. Layers that
follow (activations, pooling) then run in float32 on rounded values.
"""

from __future__ import annotations

import copy
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from mpcore.errors import BackendError
from mpcore.numerics.dtypes import is_low
from mpcore_mindspore.graph_rewritten import check_rewritten
from mpcore_mindspore.layers import STATISTICS, leaves, own_parameters, parameter_paths
from mpcore_mindspore.op_list import keep_layers, lists_of, set_auto
from mpcore_mindspore.release import clear_precision, original_of, replace_parameters
from mpcore_mindspore.stored_low import cast_frozen, holds_low, low_param

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mpcore.backend.backend import Capabilities
    from mpcore.policy.plan import LayerPlan, Plan
    from mpcore_mindspore.release import Original

__all__ = [
    "FLOATS",
    "CastNetwork",
    "apply_plan",
    "cast_network",
    "check_plan",
    "compute_dtypes",
    "emulated_parameters",
    "native_of",
    "store_low",
]

FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)


def _caster(*dtypes: ms.Type) -> Callable[[Any], Any]:
    """Return what casts floats to each dtype in turn; their gradients take the same way back."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.dtype in FLOATS:
                for dtype in dtypes:
                    value = value.astype(dtype)
            return value
        if isinstance(value, (tuple, list)):
            return tuple([cast(item) for item in value])
        if isinstance(value, dict):
            return {key: cast(item) for key, item in value.items()}
        return value

    return cast


def _rounder(dtype: ms.Type) -> Callable[[Any], Any]:
    return _caster(dtype, ms.float32)  # a gradient is rounded on its way too


def _keep(value: object) -> Any:
    return value


def _recast(cell: nn.Cell, before: Callable[[Any], Any], after: Callable[[Any], Any]) -> None:
    original = cell.construct

    def construct(self: nn.Cell, *args: object, **kwargs: object) -> Any:
        given = [before(item) for item in args]
        return after(original(*given, **{name: before(item) for name, item in kwargs.items()}))

    cell.construct = types.MethodType(construct, cell)


def _came(args: Iterable[object]) -> Any:
    """Return the dtype of the first float Tensor among ``args``, else None."""
    found = [item.dtype for item in args if isinstance(item, Tensor) and item.dtype in FLOATS]
    return found[0] if len(found) > 0 else None


def _as(value: object, dtype: ms.Type) -> Any:
    if isinstance(value, Tensor):
        return value.astype(dtype) if value.dtype in FLOATS else value
    if isinstance(value, (tuple, list)):
        return tuple([_as(item, dtype) for item in value])
    return value


def _shadow(cell: nn.Cell, dtype: ms.Type, original: Original) -> Any:
    """Return a Cell outside the network that runs the same Parameters in ``dtype``.

    A Cell has one precision; what it follows is known at the call only.
    """
    shadow = copy.deepcopy(cell)
    ours = {id(p): q for p, q in zip(shadow.get_parameters(), cell.get_parameters(), strict=True)}
    for _, inner in shadow.cells_and_names():
        replace_parameters(inner, ours)
    shadow.to_float(dtype)
    original.shadows.append(shadow)
    return shadow


def _mirror(cell: nn.Cell, shadows: list[Any]) -> None:
    """Let ``set_train`` and its like reach the shadows of ``cell``."""
    add_flags = cell.add_flags_recursive

    def add_flags_recursive(self: nn.Cell, **flags: object) -> Any:
        for shadow in shadows:
            shadow.add_flags_recursive(**flags)
        return add_flags(**flags)

    cell.add_flags_recursive = types.MethodType(add_flags_recursive, cell)


def _follow_parameters(cell: nn.Cell, original: Original) -> None:
    """Run ``cell`` in the dtype that comes in, its Parameters cast to it."""
    shadows = {dtype: _shadow(cell, dtype, original) for dtype in (ms.float16, ms.float32)}
    half, single = shadows.values()
    # What takes no floats, an embedding, hands on its Parameters: frozen 16-bit ones as float32.
    inside = single if holds_low(cell) else cell.construct

    def construct(self: nn.Cell, *args: object, **kwargs: object) -> Any:
        came = _came(args)
        if came == ms.float16:
            return half(*args, **kwargs)
        if came == ms.float32:
            return single(*args, **kwargs)
        return inside(*args, **kwargs)

    _mirror(cell, list(shadows.values()))
    cell.construct = types.MethodType(construct, cell)


def _hand_back(cell: nn.Cell, dtype: ms.Type, original: Original) -> None:
    """Run ``cell`` in ``dtype``, and hand on what came in."""
    shadow = _shadow(cell, dtype, original)

    def construct(self: nn.Cell, *args: object, **kwargs: object) -> Any:
        came = _came(args)
        result = shadow(*args, **kwargs)
        return result if came is None else _as(result, came)

    _mirror(cell, [shadow])
    cell.construct = types.MethodType(construct, cell)


def check_plan(net: nn.Cell, plan: Plan, device: str) -> None:
    """Refuse what MindSpore would compute wrongly; changes nothing.

    Args:
        net: the network.
        plan: the plan for it.
        device: ``"CPU"``, ``"Ascend"`` or ``"GPU"``.

    Raises:
        BackendError: the network was prepared before; a float16 LSTM in eager mode on CPU,
            whose gradients are wrong there (mindspore 2.10.0: off by 4.7 where jit is right
            to 2e-3); 16-bit parameters of a norm with statistics; float16 ones that are not
            rounded to nearest.
    """
    if original_of(net) is not None:
        msg = (
            f"`model` must not be prepared twice, this {type(net).__name__} was; call "
            "`release()` of the first one, or build it anew"
        )
        raise BackendError(msg)
    check_rewritten(net, plan)
    if plan.policy.by == "graph":
        return
    lists_of(plan)
    eager = ms.get_context("mode") == ms.PYNATIVE_MODE
    cells = leaves(net)
    for entry in plan.layers:
        if (
            entry.category == "norm"
            and entry.param in ("float16", "bfloat16")
            and _has_statistics(cells[entry.path][0])
        ):
            msg = (
                f"layer {entry.path!r}: a norm with running statistics must keep float32 "
                f"parameters in mindspore, got {entry.param}: its kernel wants scale and "
                'statistics of one dtype; use "full>lower op=batch_norm", or by="layer"'
            )
            raise BackendError(msg)
        low = entry.compute == "float16" or (entry.compute == "follow" and _lowers(plan))
        wrong = low and isinstance(cells[entry.path][0], nn.LSTM)
        if wrong and eager and device == "CPU":
            msg = (
                f"layer {entry.path!r}: a float16 LSTM has wrong gradients in mindspore's eager "
                'mode on CPU; keep it float32 with policy.full(layer="recurrent"), or set '
                "GRAPH_MODE before prepare, where they are right"
            )
            raise BackendError(msg)


def native_of(can: Capabilities) -> frozenset[str]:
    """Return the 16-bit dtypes that the device computes in; others are emulated."""
    return frozenset(name for name, has in can.compute.items() if has.level == "native")


def _has_statistics(cell: nn.Cell) -> bool:
    return any(not p.requires_grad and p.name.endswith(STATISTICS) for p in cell.get_parameters())


def apply_plan(net: nn.Cell, plan: Plan, native: frozenset[str], original: Original) -> None:
    """Give every leaf its dtypes, and the network those of its inputs and output.

    Args:
        net: changed in place.
        plan: the plan for it.
        native: 16-bit dtypes that the device computes in; others are emulated.
        original: what ``net`` was before.
    """
    policy = plan.policy
    cells = leaves(net)
    if policy.by == "op" and is_low(policy.compute):
        # Each Cell, not the network alone: a loss function may call the parts of a network.
        for cell, _ in cells.values():
            set_auto(cell, getattr(ms, policy.compute), lists_of(plan))
        keep_layers(cells, plan)
    elif _lowers(plan):
        for entry in plan.layers:
            _apply_entry(*cells[entry.path], entry, native, original)
    else:
        cast_frozen(net)
    if _lowers(plan) or policy.by == "op":
        before = _converter(policy.compute, native) if policy.inputs == "cast" else _keep
        _recast(net, before, _converter(policy.output, native))


def _converter(dtype: str, native: frozenset[str]) -> Callable[[Any], Any]:
    return (_rounder if _emulated(dtype, native) else _caster)(getattr(ms, dtype))


def _emulated(dtype: str, native: frozenset[str]) -> bool:
    return dtype in ("float16", "bfloat16") and dtype not in native


def _lowers(plan: Plan) -> bool:
    found = {dtype for e in plan.layers for dtype in (e.compute, e.output)}
    return bool(found & {"float16", "bfloat16"})


def _apply_entry(
    cell: nn.Cell, category: str, entry: LayerPlan, native: frozenset[str], original: Original
) -> None:
    if category == "container":
        return  # its leaves have their own entries; the user's `to_float` stays on it
    handed_back = entry.output == "follow" and entry.compute != "follow"
    output = _keep if entry.output == "follow" else _converter(entry.output, native)
    if entry.compute == "follow":
        clear_precision(cell)
        # Norms take a 16-bit input beside float32 parameters, other kernels refuse it.
        if category == "norm" and holds_low(cell):
            _hand_back(cell, ms.float32, original)
        elif category != "norm" and any(p.dtype in FLOATS for p in cell.get_parameters()):
            _follow_parameters(cell, original)
        if entry.output != "follow":
            _recast(cell, _keep, output)
        return
    compute = getattr(ms, entry.compute)
    emulated = _emulated(entry.compute, native)
    if emulated:
        clear_precision(cell)
        if holds_low(cell):
            cell.to_float(ms.float32)  # frozen bfloat16: rounded already
        # Emulated, a 16-bit value is a float32 one: what comes in and what is handed back too.
        after = _rounder(compute) if handed_back else output
        _recast(cell, _rounder(compute), after)
    elif handed_back:
        _hand_back(cell, compute, original)
    else:
        # A float32 layer needs it too: its kernels refuse or follow a 16-bit input.
        cell.to_float(compute)
        # Recurrent layers hand on float32 by themselves.
        if entry.output != entry.compute or entry.category == "recurrent":
            _recast(cell, _keep, output)


def emulated_parameters(net: nn.Cell, plan: Plan, native: frozenset[str]) -> list[Any]:
    """Return the float32 Parameters that must be rounded while the network runs.

    Empty when by="model": there the stored values are rounded themselves.
    """
    if plan.policy.by != "layer":
        return []
    return [
        param
        for entry, param in _planned(net, plan)
        if _emulated(entry.compute, native) and not low_param(param)
    ]


@dataclass(frozen=True, eq=False)
class CastNetwork:
    """A network that a plan was applied to.

    Attributes:
        network: the network.
        pairs: (16-bit Parameter in the network, the float32 one before it), each once.
        rounded: float32 Parameters that must be rounded while the network runs.
        compute: compute dtype of the layer that each Parameter belongs to, by its ``id``.
        paths: path by ``id`` of each Parameter, of both in a pair.
    """

    network: nn.Cell
    pairs: tuple[tuple[ms.Parameter, ms.Parameter], ...]
    rounded: tuple[ms.Parameter, ...]
    compute: Mapping[int, str]
    paths: Mapping[int, str]


def cast_network(
    net: nn.Cell,
    plan: Plan,
    native: frozenset[str],
    original: Original,
    by_graph: Callable[[Any], None] | None = None,
) -> CastNetwork:
    """Apply ``plan`` to ``net`` in place, its Parameters too where the policy is by="model".

    Args:
        net: the network.
        plan: the plan for it.
        native: 16-bit dtypes that the device computes in; others are emulated.
        original: what ``net`` was before; the caller puts it back if this raises.
        by_graph: under by="graph", what lets the network run by its graphs; its Cells are left
            as they are.
    """
    paths = parameter_paths(net)
    if by_graph is not None:
        by_graph(net)
    else:
        apply_plan(net, plan, native, original)
    pairs = store_low(net, plan, native, original) if plan.policy.by == "model" else []
    return CastNetwork(
        network=net,
        pairs=tuple(pairs),
        rounded=tuple(emulated_parameters(net, plan, native)),
        compute=compute_dtypes(net, plan),
        paths=paths | {id(low): paths[id(master)] for low, master in pairs},
    )


def compute_dtypes(net: nn.Cell, plan: Plan) -> dict[int, str]:
    """Return the compute dtype of the layer that each Parameter belongs to, by its ``id``."""
    return {id(param): entry.compute for entry, param in _planned(net, plan)}


def _planned(net: nn.Cell, plan: Plan) -> Iterator[tuple[LayerPlan, Any]]:
    """Yield (entry, Parameter), each Parameter once, without the statistics of norms."""
    cells, seen = leaves(net), set[int]()
    for entry in plan.layers:
        cell, category = cells[entry.path]
        for param in own_parameters(cell, category).values():
            statistics = category == "norm" and not param.requires_grad
            if id(param) not in seen and not statistics and param.dtype in FLOATS:
                seen.add(id(param))
                yield entry, param


def store_low(
    net: nn.Cell, plan: Plan, native: frozenset[str], original: Original
) -> list[tuple[Any, Any]]:
    """Give ``net`` 16-bit parameters where the plan says so.

    The float32 Parameters stay in the optimizer, under the name ``master.<name>``; what is
    stored of them between steps is the matter of ``master_storage``. Tied parameters stay tied. An
    emulated dtype is stored as float32 that holds rounded values.

    Returns:
        Pairs (Parameter in the network, the float32 one before it), each once.
    """
    made: dict[int, tuple[Any, Any]] = {}
    for entry, param in _planned(net, plan):
        if entry.param in ("", "float32") or low_param(param):  # frozen in 16 bits: it stays
            continue
        low = param.value().astype(getattr(ms, entry.param))
        if entry.param not in native:
            low = low.astype(ms.float32)
        copy = Parameter(low, name=param.name, requires_grad=param.requires_grad)
        param.name = f"master.{param.name}"  # a train cell holds both: names must differ
        made[id(param)] = copy, param
    lows = {key: low for key, (low, _) in made.items()}
    for holder in (net, *original.shadows):
        for _, cell in holder.cells_and_names():
            replace_parameters(cell, lows)
    original.swapped = list(made.values())
    return original.swapped
