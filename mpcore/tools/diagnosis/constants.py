"""Constants that a 16-bit format cannot hold: masks of -1e9, epsilons of 1e-12."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mpcore.numerics.dtypes import FORMATS
from mpcore.tools.diagnosis.locate import is_low
from mpcore.tools.diagnosis.record import Constant
from mpcore.tools.diagnosis.timeline import layer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mpcore.tools.inspection import Inspection, LayerCall

__all__ = ["lint"]

_GUARDS = ("add", "clamp", "maximum", "max", "sub", "where")
"""Beginnings of ops in which a tiny constant keeps a value from zero."""


def lint(inspection: Inspection, computes: Mapping[str, str]) -> tuple[Constant, ...]:
    """Return the constants out of range, each once.

    Args:
        inspection: with ops, where the framework shows them.
        computes: dtype that each layer computes in, by path.
    """
    found: dict[tuple[str, float], Constant] = {}
    data = {(x.shape, x.digest) for x in inspection.batch}
    for call in inspection.calls:
        # The largest pixel of a batch is no constant, though it be a power of ten.
        cast = () if any((x.shape, x.digest) in data for x in call.inputs) else _cast(call)
        for constant in (*_of_op(call), *cast, *_of_layer(call, computes)):
            found.setdefault((constant.where, constant.value), constant)
    return tuple(found.values())


def _of_op(call: LayerCall) -> Iterator[Constant]:
    dtype = next((s.dtype for s in call.outputs if is_low(s.dtype)), "")
    if call.category != "op" or not dtype:
        return
    for value in call.attributes.get("constants", ()):
        if math.isfinite(value) and abs(value) > FORMATS[dtype].max:
            yield _large(layer_of(call), value, dtype)
        elif value and call.type.lower().startswith(_GUARDS):
            yield from _tiny(layer_of(call), value, dtype)


def _cast(call: LayerCall) -> Iterator[Constant]:
    """Yield what a cast loses: a mask that becomes inf, a single number that becomes 0."""
    low = next((s for s in call.outputs if is_low(s.dtype)), None)
    if call.category != "op" or low is None or len(call.inputs) != 1:
        return
    given, where = call.inputs[0], layer_of(call)
    if given.count == low.zeros == 1:
        yield from _tiny(where, float(given.sample[0]), low.dtype)
    # A mask is a power of ten or the like; other values are no constants.
    value = float(f"{given.peak:.0e}")
    if low.infinite and FORMATS[low.dtype].max < given.peak == float(np.float32(value)):
        same = np.abs(given.sample) == np.float32(given.peak)
        negative = same.any() and (given.sample[same] < 0).all()
        yield _large(where, -value if negative else value, low.dtype)


def _of_layer(call: LayerCall, computes: Mapping[str, str]) -> Iterator[Constant]:
    dtype = computes.get(call.path, "")
    if call.category != "op" and is_low(dtype):
        eps = call.attributes.get("eps")
        if isinstance(eps, float):
            yield from _tiny(call.path, eps, dtype)


def _large(where: str, value: float, dtype: str) -> Constant:
    limit = FORMATS[dtype].max
    # Half of the range is left for what a mask is added to.
    return Constant(where, value, limit, math.copysign(2.0 ** math.floor(math.log2(limit)), value))


def _tiny(where: str, value: float, dtype: str) -> Iterator[Constant]:
    form = FORMATS[dtype]
    if 0 < abs(value) < form.smallest_subnormal:
        # The smallest number whose reciprocal is in range, too.
        yield Constant(where, value, form.smallest_subnormal, form.smallest_normal)
