"""Where a pass leaves the range of a format: the first event that a float32 run does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mpcore.numerics.dtypes import FORMATS
from mpcore.numerics.dtypes import is_low as _is_low
from mpcore.tools.diagnosis import timeline
from mpcore.tools.diagnosis.timeline import Event, layer_of, op_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mpcore.tools.inspection import Inspection, LayerCall, TensorSummary

__all__ = ["Finding", "headroom", "is_low", "locate", "passes"]

_TOP = FORMATS["float32"].max
_BATCH = "the batch"


def is_low(dtype: str) -> bool:
    """Return whether ``dtype`` is a 16-bit format; words such as "follow" are none."""
    return dtype in FORMATS and _is_low(dtype)


@dataclass(frozen=True)
class Finding:
    """Where it happened.

    Attributes:
        phase: one of ``mpcore.tools.diagnosis.PHASES``.
        layer: path of the layer.
        type: its class name; ``""`` outside of every layer.
        op: name of the op in it, if it was seen.
        dtype: format that was left.
        peak: largest absolute value of the float32 run there; inf where that is not finite.
        anyway: whether float32 does not hold it either.
        source: what held it before anything ran: ``"the batch"``, ``"a weight or constant"``, or
            ``""``. Where ``anyway`` is False, only its 16-bit copy does.
        before: layers that had begun by then, the latest first; containers left out.
        dies: whether what overflowed was divided by: the layer hands on zeros, all finite.
    """

    phase: str
    layer: str
    type: str
    op: str | None
    dtype: str
    peak: float
    anyway: bool = False
    source: str = ""
    before: tuple[str, ...] = ()
    dies: bool = False


def passes(inspection: Inspection, names: Collection[str] = ()) -> bool:
    """Return whether a step with these gradients would be a real one.

    Args:
        inspection: of the batch, forward and backward.
        names: the parameters that the step moves; empty for all.
    """
    return (
        math.isfinite(inspection.loss)
        and all(grad.finite for grad in _judged(inspection, names).values())
        and not _divides_out(inspection, names)
    )


def _judged(inspection: Inspection, names: Collection[str]) -> dict[str, TensorSummary]:
    return {
        name: grad
        for name, grad in inspection.grads.items()
        if grad is not None and (not names or name in names)
    }


def _divides_out(inspection: Inspection, names: Collection[str]) -> str:
    """Return the first parameter whose gradient is finite until the scale is divided out."""
    judged = _judged(inspection, names)
    return next((n for n, g in judged.items() if g.peak / inspection.scale > _TOP), "")


def locate(
    inspection: Inspection,
    reference: Inspection,
    computes: Mapping[str, str],
    names: Collection[str] = (),
) -> Finding | None:
    """Return where the pass overflows first; None where everything is finite.

    Args:
        inspection: of the batch, with ops.
        reference: of the same batch in float32, with ops, at a scale of 1.
        computes: dtype that each layer computes in, by path.
        names: the parameters that the step moves; empty for all.
    """
    if not passes(inspection, names) and not all(x.finite for x in inspection.batch):
        return Finding("forward", "", "", None, "float32", math.inf, anyway=True, source=_BATCH)
    if not math.isfinite(inspection.loss):
        return _forward(inspection, reference, computes)
    judged = _judged(inspection, names)
    if not all(grad.finite for grad in judged.values()):
        died = _died(inspection, reference, computes)
        swallowed = _swallowed(inspection, reference, computes)
        if died and swallowed and swallowed.layer in died.before:
            died = None  # a ReLU of -inf, say: what it was given had overflowed before
        return died or swallowed or _backward(inspection, reference, computes)
    paths = _types(inspection)
    name = _divides_out(inspection, names)
    if name:
        layer = timeline.owner(name, paths)
        peak = judged[name].peak / inspection.scale
        return Finding("unscale", layer, paths.get(layer, ""), None, "float32", peak)
    norms = {name: grad.norm / inspection.scale for name, grad in judged.items()}
    if math.hypot(*norms.values()) > _TOP:
        layer = timeline.owner(max(norms, key=lambda name: norms[name]), paths)
        total = math.hypot(*norms.values())
        return Finding("clip", layer, paths.get(layer, ""), None, "float32", total, anyway=True)
    return None


def _types(inspection: Inspection) -> dict[str, str]:
    return {call.path: call.type for call in inspection.calls if call.category != "op"}


def _forward(inspection: Inspection, reference: Inspection, computes: Mapping[str, str]) -> Finding:
    events, types = timeline.forward(inspection), _types(inspection)
    twins = {event.key: event for event in timeline.forward(reference)}
    kept = _kept_inside(inspection)
    event = next((e for e in events if id(e.call) not in kept and _left(e, twins.get(e.key))), None)
    if event is not None:
        found = _finding("forward", event, twins.get(event.key), computes, types)
        if _is_data(event, inspection):
            found = replace(found, source=_BATCH)
        return replace(found, before=_before(events, event))
    if math.isfinite(reference.loss):
        loss = Finding("loss", "", "", None, _loss_dtype(events), abs(reference.loss))
        return replace(loss, before=_before(events, None))
    # Float32 goes the same way: the first event that is no mask of -inf.
    event = next((e for e in events if e.side == "out" and _undefined(e)), None)
    event = event or next((e for e in events if e.side == "out" and _infinite(e)), None)
    if event is None or _reaches_loss(events):
        return Finding("loss", "", "", None, "float32", math.inf, anyway=True)
    came = next((e for e in events if e.call is event.call and e.side == "in"), None)
    source = "a weight or constant" if came is not None and _broken(came.summaries) else ""
    found = _finding("forward", event, None, computes, types)
    return Finding("forward", found.layer, found.type, found.op, "float32", math.inf, True, source)


def _swallowed(
    inspection: Inspection, reference: Inspection, computes: Mapping[str, str]
) -> Finding | None:
    """Return the layer whose output is not finite, though the loss is: a clamp or ReLU hid it.

    Ops do not count: a mask of -1e9 becomes -inf in float16, and softmax makes zeros of it.
    """
    events, types = timeline.forward(inspection), _types(inspection)
    twins = {event.key: event for event in timeline.forward(reference)}
    for event in events:
        layer = event.side == "out" and event.call.category not in ("op", "container")
        if layer and _left(event, twins.get(event.key)):
            found = _finding("forward", event, twins.get(event.key), computes, types)
            return replace(found, before=_before(events, event))
    return None


def _died(
    inspection: Inspection, reference: Inspection, computes: Mapping[str, str]
) -> Finding | None:
    """Return the layer that hands on zeros where float32 has none: an inf was divided by.

    All of it is finite, so that neither the loss nor a scale tells: a sum of squares leaves
    float16, and its reciprocal is 0. Values too small for the format make zeros too, but the
    float32 run shows how small they are.
    """
    events, types = timeline.forward(inspection), _types(inspection)
    twins = {event.key: event for event in timeline.forward(reference)}
    for number, event in enumerate(events):
        twin = twins.get(event.key)
        if twin is None or event.call.category == "op" or not _dead(event, twin):
            continue
        # What came in dead was made by the code before: of the layer around it.
        path = event.inside if event.side == "in" else event.call.path
        inside = next((e for e in events[: number + 1] if _overflowed(e, twins, path)), None)
        over = twins.get(inside.key) if inside is not None else None
        low = [s.dtype for s in event.summaries if is_low(s.dtype)]
        dtype = next(iter(low), computes.get(path, "float16"))
        return Finding(
            "forward",
            path,
            types.get(path, ""),
            op_of(inside.call) if inside is not None else None,
            dtype if is_low(dtype) else "float16",
            max((s.peak for s in over.summaries), default=0.0) if over else 0.0,
            before=_before(events, event),
            dies=True,
        )
    return None


_DEAD = 0.2  # of the values, more than in float32, that a layer hands on as zeros
_SMALL = 1e-3  # a root mean square under which values may be too small for the format


def _dead(event: Event, twin: Event) -> bool:
    pairs = zip(event.summaries, twin.summaries, strict=False)
    return any(
        a.finite
        and a.count
        and "float" in a.dtype
        and a.zeros - b.zeros > _DEAD * a.count
        and b.norm > _SMALL * math.sqrt(b.count)
        for a, b in pairs
    )


def _overflowed(event: Event, twins: Mapping[timeline.Key, Event], path: str) -> bool:
    """Return whether an op in the code of a layer left the format, where float32 does not."""
    if event.side != "out" or event.call.category != "op" or layer_of(event.call) != path:
        return False
    return _left(event, twins.get(event.key))


def _kept_inside(inspection: Inspection) -> set[int]:
    """Return the ops, by ``id``, of layers that hand on finite values all the same.

    Some kernels leave outputs that nobody reads unwritten (MindSpore's BatchNorm), and masks of
    -inf inside of attention are meant.
    """
    latest: dict[str, LayerCall] = {}
    kept = set()
    for call in inspection.calls:
        if call.category != "op":
            latest[call.path] = call
            continue
        layer = latest.get(layer_of(call))
        if layer is not None and layer.category != "container" and not _broken(layer.outputs):
            kept.add(id(call))
    return kept


def _reaches_loss(events: list[Event]) -> bool:
    """Return whether what the model hands on is finite, so that the loss function is left."""
    last = [event for event in events if event.side == "out" and event.call.category != "op"]
    return bool(last) and not _broken(last[-1].summaries)


def _backward(
    inspection: Inspection, reference: Inspection, computes: Mapping[str, str]
) -> Finding:
    events, types = timeline.backward(inspection), _types(inspection)
    twins = {event.key: event for event in timeline.backward(reference)}
    scale = inspection.scale / reference.scale
    event = next((e for e in events if _left(e, twins.get(e.key))), None)
    if event is not None:
        found = _finding("backward", event, twins.get(event.key), computes, types, scale)
        return replace(found, before=_before(timeline.forward(inspection), event))
    event = next((e for e in events if _broken(e.summaries)), None)
    if event is None:
        return Finding("backward", "", "", None, "float32", math.inf, anyway=True)
    found = _finding("backward", event, None, computes, types)
    return Finding("backward", found.layer, found.type, None, "float32", math.inf, anyway=True)


def _finding(
    phase: str,
    event: Event,
    twin: Event | None,
    computes: Mapping[str, str],
    types: Mapping[str, str],
    scale: float = 1.0,
) -> Finding:
    call = event.call
    layer = layer_of(call)
    # What comes in broken, and left everything before it whole, was made by the code around.
    outside = event.side == "in" and phase == "forward" and call.category != "op"
    path = event.inside if outside else layer
    broken = next((s for s in event.summaries if not s.finite), None)
    dtype = broken.dtype if broken is not None else "float32"
    if not is_low(dtype) and is_low(computes.get(layer, "")):
        dtype = computes[layer]
    op = None if event.side == "in" else op_of(call)  # what it is given is not its own doing
    peak = _peak(event, twin, scale)
    return Finding(phase, path, types.get(path, ""), op, dtype, peak, source=_source(event))


def _before(events: list[Event], event: Event | None) -> tuple[str, ...]:
    """Return the paths of layers that had begun before ``event`` of the forward pass."""
    begun: dict[str, None] = {}
    for each in events:
        if event is not None and each.key[1:] == event.key[1:] and each.side in ("in", event.side):
            break
        if each.side == "in" and each.call.category not in ("op", "container"):
            begun.pop(each.call.path, None)
            begun[each.call.path] = None
    return tuple(reversed(begun))


def _is_data(event: Event, inspection: Inspection) -> bool:
    """Return whether an op was given nothing but tensors of the batch: a cast of it."""
    data = {(x.shape, x.digest) for x in inspection.batch}
    given = {(x.shape, x.digest) for x in event.call.inputs}
    return event.call.category == "op" and bool(given) and given <= data


def _source(event: Event) -> str:
    whole = event.side == "in" and event.call.category == "op"
    return "a weight or constant" if whole else ""


def _peak(event: Event, twin: Event | None, scale: float) -> float:
    if twin is None:  # a cast that float32 does not need: it is what came in
        given = event.call.inputs
        return max((s.peak for s in given), default=math.inf) if given else math.inf
    if _broken(twin.summaries):
        return math.inf
    return max((s.peak for s in twin.summaries), default=0.0) * scale


def _left(event: Event, twin: Event | None) -> bool:
    """Return whether the event has something not finite that the float32 run has not."""
    if not _broken(event.summaries):
        return False
    if twin is None:
        return event.side == "out" and not _broken(event.call.inputs)
    return _undefined(event) > _undefined(twin) or _infinite(event) > _infinite(twin)


def _broken(summaries: tuple[TensorSummary, ...]) -> bool:
    return any(not summary.finite for summary in summaries)


def _undefined(event: Event) -> int:
    return sum(summary.undefined for summary in event.summaries)


def _infinite(event: Event) -> int:
    return sum(summary.infinite for summary in event.summaries)


def _loss_dtype(events: list[Event]) -> str:
    last = [event for event in events if event.side == "out" and event.call.category != "op"]
    low = [s.dtype for event in last[-1:] for s in event.summaries if is_low(s.dtype)]
    return low[0] if low else "float32"


def headroom(inspection: Inspection) -> float:
    """Return by how much the scale may grow until a gradient leaves its format; inf for none."""
    room = math.inf
    for event in timeline.backward(inspection):
        for grad in event.summaries:
            if grad.peak and grad.dtype in FORMATS:
                room = min(room, FORMATS[grad.dtype].max / grad.peak)
    return room
