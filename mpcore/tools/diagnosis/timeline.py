"""The calls of an inspection as events in time: what came into a layer, what it handed on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpcore.tools.inspection import Inspection, LayerCall, TensorSummary

__all__ = ["Event", "Key", "backward", "forward", "layer_of", "op_of", "owner"]

Key = tuple[str, str, str, int]
Tensor = tuple[tuple[int, ...], str, int]


@dataclass(frozen=True, eq=False)
class Event:
    """What one call took in or gave out, forward or backward.

    Attributes:
        call: the call.
        side: ``"in"``, ``"out"``, or ``"params"``: the gradients of its parameters.
        summaries: of the tensors.
        key: names the same event in another run of the same model.
        inside: path of the layer whose code it happened in, for an ``"in"``; else its own.
    """

    call: LayerCall
    side: str
    summaries: tuple[TensorSummary, ...]
    key: Key
    inside: str


def layer_of(call: LayerCall) -> str:
    """Return the path of the layer that a call belongs to."""
    return call.path.rpartition("/")[0] if call.category == "op" else call.path


def op_of(call: LayerCall) -> str | None:
    """Return the name of an op; None for a layer."""
    return call.type if call.category == "op" else None


def owner(name: str, paths: Iterable[str]) -> str:
    """Return the deepest of ``paths`` that the parameter called ``name`` lies under."""
    tail = name.replace("/", ".")
    under = [path for path in paths if path and tail.startswith(f"{path.replace('/', '.')}.")]
    return max(under, key=len, default="")


def forward(inspection: Inspection) -> list[Event]:
    """Return the events of the forward pass in order."""
    return [
        Event(call, side, call.inputs if side == "in" else call.outputs, key, inside)
        for call, side, key, inside in _events(inspection)
    ]


def backward(inspection: Inspection) -> list[Event]:
    """Return the events of the backward pass in order: that of the forward pass, reversed.

    The gradient of a tensor is the sum over all that use it, so it is told once: with the layer
    that used it first, which is the last of the backward pass.
    """
    layers = [call for call in inspection.calls if call.category != "op"]
    paths = {call.path for call in layers}
    grads: dict[str, list[TensorSummary]] = {}
    for name, grad in inspection.grads.items():
        if grad is not None:
            grads.setdefault(owner(name, paths), []).append(grad)
    first: dict[Tensor, LayerCall] = {}
    for call in layers:
        for tensor in call.inputs if call.category != "container" else ():
            first.setdefault(_named(tensor), call)
    found = []
    for call, side, key, inside in reversed(list(_events(inspection))):
        if call.category == "op":
            continue
        given = call.grad_outputs
        if side == "in":
            pairs = zip(call.inputs, call.grad_inputs, strict=False)
            given = tuple(g for x, g in pairs if first.get(_named(x), call) is call)
        # The first call of a layer is the last of the backward pass: its sums are whole then.
        if side == "in" and key[3] == 0:
            own = tuple(grads.get(call.path, ()))
            found.append(Event(call, "params", own, ("params", *key[1:]), call.path))
        found.append(Event(call, side, tuple(g for g in given if g is not None), key, inside))
    return found


def _named(summary: TensorSummary) -> Tensor:
    return summary.shape, summary.dtype, summary.digest


def _events(inspection: Inspection) -> Iterator[tuple[LayerCall, str, Key, str]]:
    """Yield (call, side, key, layer whose code it is), in order.

    Calls are listed as they begin. One has ended when the next is not inside of it.
    """
    counts: Counter[tuple[str, str]] = Counter()
    open_calls: list[tuple[LayerCall, Key]] = []

    def ended() -> tuple[LayerCall, str, Key, str]:
        call, key = open_calls.pop()
        return call, "out", ("out", *key[1:]), layer_of(call)

    for call in inspection.calls:
        while open_calls and not _inside(call, open_calls[-1][0]):
            yield ended()
        name = (layer_of(call), op_of(call) or "")
        key = ("in", *name, counts[name])
        counts[name] += 1
        parent = layer_of(open_calls[-1][0]) if open_calls else ""
        open_calls.append((call, key))
        yield call, "in", key, layer_of(call) if call.category == "op" else parent
    while open_calls:
        yield ended()


def _inside(call: LayerCall, other: LayerCall) -> bool:
    if other.category == "op":
        return False
    layer, path = layer_of(call), other.path
    if call.category == "op" and layer == path:
        return True
    return layer != path and (not path or layer.startswith(f"{path}."))
