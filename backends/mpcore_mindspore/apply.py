"""Carry out a plan on a mindspore.nn.Cell, in place and leaf by leaf.

A native dtype is ``Cell.to_float``, which casts inputs and parameters at each call. Other casts
are a replaced ``construct`` on the instance, which eager mode, ``ms.jit`` and GRAPH_MODE all
run. No source is rewritten, so classes may live anywhere.

bfloat16 has no arithmetic on CPU. It is simulated: a lowered layer rounds its inputs and
outputs, and with them the gradients that flow back, around float32 operations. Layers that
follow (activations, pooling) then run in float32 on rounded values.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, amp, nn

from mpcore.dtypes import is_low
from mpcore.errors import BackendError
from mpcore_mindspore.layers import leaves, own_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mpcore.plan import LayerPlan, Plan

__all__ = ["apply_plan", "check_plan", "simulated_parameters", "store_low"]

_FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)
_MARK = "mpcore_prepared"


def _caster(dtype: Any) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.dtype in _FLOATS:
                return value.astype(dtype)
            return value
        if isinstance(value, (tuple, list)):
            return tuple([cast(item) for item in value])
        return value

    return cast


def _rounder(dtype: Any) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.dtype in _FLOATS:
                # The gradient of each cast is a cast back: it is rounded on its way too.
                return value.astype(dtype).astype(ms.float32)
            return value
        if isinstance(value, (tuple, list)):
            return tuple([cast(item) for item in value])
        return value

    return cast


def _keep(value: Any) -> Any:
    return value


def _recast(cell: Any, before: Callable[[Any], Any], after: Callable[[Any], Any]) -> None:
    original = cell.construct

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        return after(original(*[before(item) for item in args], **kwargs))

    cell.construct = types.MethodType(construct, cell)


def check_plan(net: Any, plan: Plan, device: str) -> None:
    """Refuse what MindSpore would compute wrongly; changes nothing.

    Args:
        net: the network.
        plan: the plan for it.
        device: ``"CPU"``, ``"Ascend"`` or ``"GPU"``.

    Raises:
        BackendError: the network was prepared before; a float16 LSTM in eager mode on CPU,
            whose gradients are wrong there (mindspore 2.10.0: off by 4.7 where jit is right
            to 2e-3); 16-bit parameters without float32 masters.
    """
    if getattr(net, _MARK, False):
        msg = f"`model` must not be prepared twice, this {type(net).__name__} was; build it anew"
        raise BackendError(msg)
    if is_low(plan.policy.param) and plan.policy.master == "none":
        msg = (
            f"`param` {plan.policy.param!r} with master='none' is not possible in mindspore: its "
            "optimizers keep their state in the parameter's dtype, refuse float32 gradients "
            "there, and AdamWeightDecay diverges (its eps is 0 in float16); use master='copy'"
        )
        raise BackendError(msg)
    eager = ms.get_context("mode") == ms.PYNATIVE_MODE
    cells = leaves(net)
    for entry in plan.layers:
        wrong = isinstance(cells[entry.path][0], nn.LSTM) and entry.compute == "float16"
        if wrong and eager and device == "CPU":
            msg = (
                f"layer {entry.path!r}: a float16 LSTM has wrong gradients in mindspore's eager "
                'mode on CPU; keep it float32 with policy.full(layer="recurrent"), or set '
                "GRAPH_MODE before prepare, where they are right"
            )
            raise BackendError(msg)


def apply_plan(net: Any, plan: Plan, native: frozenset[str]) -> None:
    """Give every leaf its dtypes, and the network its output dtype.

    Args:
        net: changed in place.
        plan: the plan for it.
        native: 16-bit dtypes that the device computes in; others are simulated.
    """
    setattr(net, _MARK, True)
    policy = plan.policy
    if policy.by == "op":
        if is_low(policy.compute):
            amp.auto_mixed_precision(net, "auto", getattr(ms, policy.compute))
    elif _lowers(plan):
        cells = leaves(net)
        for entry in plan.layers:
            _apply_entry(cells[entry.path][0], entry, native)
    if _lowers(plan) or policy.by == "op":
        convert = _rounder if _simulated(policy.output, native) else _caster
        _recast(net, _keep, convert(getattr(ms, policy.output)))


def _simulated(dtype: str, native: frozenset[str]) -> bool:
    return dtype in ("float16", "bfloat16") and dtype not in native


def _lowers(plan: Plan) -> bool:
    found = {dtype for e in plan.layers for dtype in (e.compute, e.output)}
    return bool(found & {"float16", "bfloat16"})


def _apply_entry(cell: Any, entry: LayerPlan, native: frozenset[str]) -> None:
    if entry.compute == "follow":
        return
    compute, output = getattr(ms, entry.compute), getattr(ms, entry.output)
    simulated = _simulated(entry.compute, native)
    before: Callable[[Any], Any] = _keep
    if simulated:
        before = _rounder(compute)
    else:
        # A float32 layer needs it too: its kernels refuse or follow a 16-bit input.
        cell.to_float(compute)
    if _simulated(entry.output, native):
        _recast(cell, before, _rounder(output))
    elif simulated or entry.output != entry.compute or entry.category == "recurrent":
        _recast(cell, before, _caster(output))  # recurrent layers hand on float32 by themselves


def simulated_parameters(net: Any, plan: Plan, native: frozenset[str]) -> list[Any]:
    """Return the float32 Parameters that must be rounded while the network runs.

    Empty when by="model": there the stored values are rounded themselves.
    """
    if plan.policy.by != "layer":
        return []
    return [param for entry, param in _planned(net, plan) if _simulated(entry.compute, native)]


def _planned(net: Any, plan: Plan) -> Iterator[tuple[LayerPlan, Any]]:
    """Yield (entry, Parameter), each Parameter once, without the statistics of norms."""
    cells, seen = leaves(net), set[int]()
    for entry in plan.layers:
        cell, category = cells[entry.path]
        for param in own_parameters(cell, category).values():
            statistics = category == "norm" and not param.requires_grad
            if id(param) not in seen and not statistics and param.dtype in _FLOATS:
                seen.add(id(param))
                yield entry, param


def store_low(net: Any, plan: Plan, native: frozenset[str]) -> list[tuple[Any, Any]]:
    """Give ``net`` 16-bit parameters where the plan says so.

    The float32 Parameters stay what they are, and stay in the optimizer: they become the
    masters, under the name ``master.<name>``. Tied parameters stay tied. A simulated dtype is
    stored as float32 that holds rounded values.

    Returns:
        Pairs (Parameter in the network, its float32 master), each once.
    """
    made: dict[int, tuple[Any, Any]] = {}
    for entry, param in _planned(net, plan):
        if entry.param in ("", "float32"):
            continue
        low = param.value().astype(getattr(ms, entry.param))
        if entry.param not in native:
            low = low.astype(ms.float32)
        copy = Parameter(low, name=param.name, requires_grad=param.requires_grad)
        param.name = f"master.{param.name}"  # a train cell holds both: names must differ
        made[id(param)] = copy, param
    for _, cell in net.cells_and_names():
        _replace(cell, {key: low for key, (low, _) in made.items()})
    return list(made.values())


def _replace(cell: Any, made: dict[int, Any]) -> None:
    for name, param in list(cell._params.items()):
        if id(param) in made:
            cell._params[name] = made[id(param)]
    for name, value in list(vars(cell).items()):
        if isinstance(value, ParameterTuple):  # recurrent layers hold their weights twice
            swapped = ParameterTuple([made.get(id(param), param) for param in value])
            object.__setattr__(cell, name, swapped)
