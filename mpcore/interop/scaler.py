"""Readers and writers for the state of other libraries' loss scalers, as plain dicts.

A format is a dict of Python numbers, as the library's own ``state_dict`` gives it or as its
attributes are called. What does not carry over is never dropped in silence: every conversion is
undone at once, and what comes back differently is told.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mpcore.errors import CheckpointError, check_choice
from mpcore.interop.scaler_formats import FORMATS, NativeFormat, multiplier, patience
from mpcore.scaling.reachable import check_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.scaling.transition import LossScale, LossScaleState

__all__ = ["detect_format", "export_scaler", "import_scaler"]


def detect_format(data: Mapping[str, Any]) -> str:
    """Return the name of the format whose keys ``data`` has.

    Raises:
        CheckpointError: none has these keys, or several have.

    Examples:
        >>> detect_format({"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 3}})
        'apex'
    """
    if not data:
        msg = "`state` must hold a scaler's state, got {}: a scaler that is not enabled has none"
        raise CheckpointError(msg)
    found = [row.name for row in FORMATS.values() if row.fits(data)]
    if len(found) == 1:
        return found[0]
    if found:
        msg = f"`state` fits the formats {', '.join(found)}: say which one it is"
        raise CheckpointError(msg)
    keys = ", ".join(str(key) for key in list(data)[:12])
    known = "; ".join(f"{row.name} ({', '.join(row.needed)})" for row in FORMATS.values())
    msg = f"`state` must have the keys of a known format, got {keys}; known are: {known}"
    raise CheckpointError(msg)


def import_scaler(
    data: Mapping[str, Any], format: str = ""
) -> tuple[LossScale, LossScaleState, list[str]]:
    """Return the rule and the state that a native dict holds, and what did not carry over.

    Args:
        data: Python numbers by the library's own keys; see ``FORMATS``.
        format: name of the format; "" finds it by the keys.

    Returns:
        The rule, the state before the next step, and a line for each number of the dict that
        is not kept as it is or that had to be assumed.

    Raises:
        CheckpointError: the keys are of no or of several formats, or a value is impossible.

    Examples:
        >>> saved = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5}
        >>> saved |= {"growth_interval": 2000, "_growth_tracker": 7}
        >>> rule, state, lost = import_scaler(saved)
        >>> str(rule), state.scale, state.good_steps, lost
        ('torch', 1024.0, 7, [])
    """
    data = {key: _listed(value) for key, value in data.items()}
    row = FORMATS[_known(format or detect_format(data))]
    rule, state = row.read(data)
    again = row.write(rule, state)
    lost = [
        f"`{key}`: {_short(value)} becomes {_short(again.get(key))}"
        for key, value in data.items()
        if key not in again or not _same(again[key], value)
    ]
    lost += [
        f"`{key}`: not in the dict, {_short(value)} is assumed"
        for key, value in again.items()
        if key not in data and not isinstance(value, dict)
    ]
    return rule, state, lost + _caution(row, rule)


def export_scaler(
    format: str, rule: LossScale, state: LossScaleState
) -> tuple[dict[str, Any], list[str]]:
    """Return the native dict nearest to a rule and its state, and what it cannot hold.

    Args:
        format: name of the format; ``FORMATS`` lists them.
        rule: any loss scale that has a scale.
        state: a state of it.

    Returns:
        The dict, ready for the library's own ``load_state_dict`` or attributes, and a line for
        each field of the rule or the state that the library will not go on with. The first
        scale of a run that goes on is no such field.

    Raises:
        CheckpointError: no such format, the state is none of the rule, or the format has no
            way to say that a scale is constant.

    Examples:
        >>> from mpcore import LossScale, LossScaleState
        >>> rule, state = LossScale(growth_interval=500), LossScaleState(8.0, 3)
        >>> data, lost = export_scaler("keras", rule, state)
        >>> data["dynamic_scale"], data["step_counter"]
        (8.0, 3)
        >>> lost[0]
        '`min_scale`: 1.0 becomes 0.0'
    """
    row = FORMATS[_known(format)]
    check_state(rule, state)
    if rule.kind == "none" or (rule.kind == "static" and not row.switch):
        able = ", ".join(other.name for other in FORMATS.values() if other.switch)
        what = f"`{row.name}` state can only say that a scale is dynamic; constant: {able}"
        if rule.kind == "none":
            what = "`loss_scale` must have a scale to write"
        msg = f"{what}; got {rule}"
        raise CheckpointError(msg)
    data = row.write(rule, state)
    back, again = row.read(data)
    before, after = _effect(rule, state), _effect(back, again)
    lost = [
        f"`{key}`: {_short(value)} becomes {_short(after[key])}"
        for key, value in before.items()
        if value != after[key] and value != ""
    ]
    return data, lost + _caution(row, rule)


def _known(name: str) -> str:
    return check_choice("format", name, FORMATS, CheckpointError)


def _effect(rule: LossScale, state: LossScaleState) -> dict[str, Any]:
    """Return what later steps depend on, so that two ways to say one machine are equal."""
    in_a_row = 0 if rule.quirks.max_skips is None else state.skips_in_a_row
    counts = {"skipped_steps": state.skipped_steps, "skips_in_a_row": in_a_row}
    if rule.kind != "dynamic":
        return {"kind": rule.kind, "scale": state.scale, **counts}
    shares, waits = bool(rule.quirks.overflow_ratio), patience(rule)
    factor = f"{rule.quirks.backoff_op} {rule.backoff_factor!r}"
    if math.frexp(multiplier(rule))[0] == 0.5:  # of powers of two every division is exact
        factor = f"mul {multiplier(rule)!r}"
    elif rule.quirks.backoff_op == "mul_reciprocal":
        factor = f"mul {rule.reciprocal!r}"
    far = rule.max_scale * rule.growth_factor > 2.0**127
    hysteresis_reset = "+".join(sorted(set(rule.quirks.hysteresis_reset.split("+"))))
    return {
        "kind": rule.kind,
        "growth_factor": rule.growth_factor,
        "backoff_factor": factor,
        "growth_interval": rule.growth_interval,
        "min_scale": rule.min_scale,
        "max_scale": rule.max_scale,
        "growth_warmup": rule.quirks.growth_warmup,
        "nonfinite_growth": rule.quirks.nonfinite_growth if far else "",
        "hysteresis": waits,
        "hysteresis_reset": hysteresis_reset if waits > 1 else "",
        "overflow_ratio": rule.quirks.overflow_ratio or None,
        "raises_at_min": rule.quirks.raises_at_min,
        "abort_below": rule.quirks.abort_below,
        "max_skips": rule.quirks.max_skips,
        "state_dtype": rule.quirks.state_dtype,
        "scale": state.scale,
        "good_steps": state.good_steps,
        "bad_steps": min(state.bad_steps, waits - 1),
        **counts,
        "steps": state.steps - state.last_change - 1 if shares else 0,
        "overflows": state.overflows if shares else 0,
    }


def _listed(value: Any) -> Any:
    """Return Python numbers for an array, whichever library it is of."""
    return value.tolist() if hasattr(value, "tolist") else value


def _caution(row: NativeFormat, rule: LossScale) -> list[str]:
    applies = rule.kind == "static" or not row.switch
    return [row.caution] if row.caution and applies else []


def _same(x: Any, y: Any) -> bool:
    one = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in (x, y)]
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_same(x[key], y[key]) for key in x)
    return bool(one[0] == one[1])


def _short(value: Any) -> str:
    return "nothing" if value is None else str(value)
