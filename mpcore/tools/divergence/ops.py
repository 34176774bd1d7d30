"""Inside of the layer that parts: its ops side by side, and the first that differs."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from mpcore.tools.divergence.distance import Distance, between
from mpcore.tools.divergence.rows import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpcore.tools.divergence.evidence import Evidence
    from mpcore.tools.inspection import LayerCall, TensorSummary

__all__ = ["inside"]


def inside(
    reference: Evidence, own: Evidence, layers: tuple[str, str], tolerance: float
) -> tuple[Row, ...]:
    """Return one row for each op of a layer, in the order of the reference.

    Ops of one backend are put side by side by name; those of two by the shape of what they hand
    on, from the last to the first, since their names differ and one may do what several do
    elsewhere. What has no partner is a row of its own.

    Args:
        reference: a side whose inspection looked into the layer (``Request.ops``).
        own: the other.
        layers: path of the layer in each.
        tolerance: of the layer's output, relative.
    """
    sides = [_ops(side, path) for side, path in zip((reference, own), layers, strict=True)]
    alike = reference.backend == own.backend
    if not alike:
        sides = [calls[::-1] for calls in sides]
    keys = [[_key(call, named=alike) for call in calls] for calls in sides]
    found: list[Row] = []
    blocks = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes()
    for kind, start, end, own_start, own_end in blocks:
        if kind == "equal":
            pairs = zip(sides[0][start:end], sides[1][own_start:own_end], strict=True)
            found += [_row(a, b, tolerance) for a, b in pairs]
        else:
            found += [_lone(call, "reference") for call in sides[0][start:end]]
            found += [_lone(call, "own") for call in sides[1][own_start:own_end]]
    return tuple(found if alike else reversed(found))


def _ops(side: Evidence, layer: str) -> list[LayerCall]:
    found = [call for call in side.inspection.calls if call.category == "op" and call.outputs]
    return [call for call in found if call.path.rpartition("/")[0] == layer]


def _key(call: LayerCall, *, named: bool) -> tuple[object, ...]:
    # Axes of one come and go between frameworks.
    shape = tuple(size for size in call.outputs[0].shape if size > 1)
    return (call.type, shape) if named else shape


def _row(a: LayerCall, b: LayerCall, tolerance: float) -> Row:
    seen = between(_first(a.outputs), _first(b.outputs), (1.0, 1.0))
    names = a.type if a.type == b.type else f"{a.type} / {b.type}"
    output = None if seen is None else Distance(seen[0], tolerance, seen[1])
    return Row(a.path, b.path, names, "op", output)


def _lone(call: LayerCall, side: str) -> Row:
    own = call.path if side == "own" else ""
    return Row(call.path, own, call.type, "op", lone=side)


def _first(outputs: Sequence[TensorSummary]) -> Sequence[TensorSummary]:
    return outputs[:1]  # what stands behind it is work space
