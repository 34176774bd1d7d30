"""Loss scaling: the rule, the state, and the one transition that every framework runs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpcore.errors import LossScaleError, PolicyError, check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "LossScale",
    "ScaleState",
    "advance",
    "check_abort",
    "initial_state",
    "inverse",
    "narrow",
    "transition",
]

_KINDS = ("none", "static", "dynamic")
_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


class ScaleState(NamedTuple):
    """State of loss scaling: numbers on the host, 0-d arrays inside a traced step.

    Attributes:
        scale: factor the loss is multiplied by, dimensionless; float32, or float64 where the
            rule says so.
        good_steps: finite steps since the scale last changed or a step was skipped; counts
            from ``-growth_warmup``; int32, as all that follow.
        skipped_steps: steps skipped since the start.
        bad_steps: skipped steps that count towards ``hysteresis``.
        skips_in_a_row: skipped steps since the last finite one; moves only under ``max_skips``.
        steps: steps since the start.
        last_change: value of ``steps`` at the last change of the scale, -1 before.
        overflows: skipped steps since then; moves only under ``tolerance``, like the two above.
    """

    scale: Any
    good_steps: Any = 0
    skipped_steps: Any = 0
    bad_steps: Any = 0
    skips_in_a_row: Any = 0
    steps: Any = 0
    last_change: Any = -1
    overflows: Any = 0


@dataclass(frozen=True)
class LossScale:
    """How the factor on the loss is chosen; immutable, hashable, round-trips through ``str``.

    A dynamic scale backs off on overflow and grows after a quiet run. Under the defaults floor
    and cap keep it a positive finite number, so no state exists from which finite steps could
    not recover. The further fields exist to imitate other machines exactly:
    ``LossScale.named("deepspeed")``; ``mpcore.scaling_presets`` holds them as data.

    Source: skip and reduce on overflow, Micikevicius et al. 2018, arXiv:1710.03740; the
    defaults of growth and back-off are those of torch.amp.GradScaler, torch 2.13.0. The cap
    and the floor are ours: torch reaches 0 and Keras 3.15 reaches inf, and neither returns.

    Attributes:
        kind: ``"dynamic"``, ``"static"`` (constant), or ``"none"`` (the factor is 1).
            Steps with non-finite gradients are skipped under each of them.
        init_scale: first scale, in [min_scale, max_scale], dimensionless.
        growth_factor: multiplier on growth, > 1.
        backoff_factor: multiplier on overflow, in (0, 1); a divisor > 1 under another
            ``backoff_op``.
        growth_interval: finite steps before one growth, in optimizer steps, >= 1.
        min_scale: floor, >= 2**-126, may be below 1; overflow at the floor still skips the step.
        max_scale: cap, finite in float32; growth stops there.
        growth_warmup: finite steps more before the first growth and after each overflow.
        backoff_op: ``"mul"``, ``"div"`` or ``"mul_reciprocal"`` (times 1 / backoff_factor).
        nonfinite_growth: what a growth beyond the format does: ``"keep"`` the old scale,
            ``"clamp"`` to the largest finite value, or ``"allow"`` inf.
        hysteresis: skipped steps before one back-off, >= 0.
        refill: what sets the count of hysteresis back: any of ``"good"``, ``"growth"``,
            ``"backoff"``, joined by ``+``.
        tolerance: None, or the share of skipped steps since the last change, in [0, 1], from
            which an overflow backs off.
        raises_at_min: an overflow at the floor raises LossScaleError.
        abort_below: a back-off to this or less is undone and raises LossScaleError.
        max_skips: more skipped steps in a row raise LossScaleError; None for no limit.
        state_dtype: format the scale is kept in.
        factor_dtype: format the factors are rounded to before a product.
        imitates: name of the preset it came from; natives are taken as they are, ours is
            checked for states that it could not leave.

    Under the default ``factor_dtype`` all factors and scales are float32 values, so that the
    trajectory is the same number for number in every framework.
    """

    kind: str = "dynamic"
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    growth_warmup: int = 0
    backoff_op: str = "mul"
    nonfinite_growth: str = "keep"
    hysteresis: int = 1
    refill: str = "good"
    tolerance: float | None = None
    raises_at_min: bool = False
    abort_below: float | None = None
    max_skips: int | None = None
    state_dtype: str = "float32"
    factor_dtype: str = "float32"
    imitates: str = field(default="")

    def __post_init__(self) -> None:
        """Refuse contradictions; each message names the field, the rule and the value."""
        check_choice("loss_scale.kind", self.kind, _KINDS)
        check_choice("backoff_op", self.backoff_op, ("mul", "div", "mul_reciprocal"))
        check_choice("nonfinite_growth", self.nonfinite_growth, ("keep", "clamp", "allow"))
        for name in ("state_dtype", "factor_dtype"):
            check_choice(name, getattr(self, name), ("float32", "float64"))
        for word in self.refill.split("+"):
            check_choice("refill", word, ("good", "growth", "backoff"))
        self._check_counts()
        for name, (holds, rule) in self._bounds().items():
            value = getattr(self, name)
            if not holds:
                msg = f"`{name}` must be {rule}, got {value!r}"
                raise PolicyError(msg)
            if self.factor_dtype == "float32" and float(np.float32(value)) != value:
                near = float(np.float32(value))
                msg = f"`{name}` must be a float32 value, got {value!r}; the nearest is {near!r}"
                raise PolicyError(msg)

    @property
    def can_abort(self) -> bool:
        """Whether some overflow ends the run with LossScaleError."""
        return self.raises_at_min or self.abort_below is not None or self.max_skips is not None

    @property
    def reciprocal(self) -> float:
        """1 / backoff_factor, in the format of the factors."""
        value = 1.0 / self.backoff_factor
        return value if self.factor_dtype == "float64" else float(np.float32(value))

    def _check_counts(self) -> None:
        for name, least in (("growth_interval", 1), ("growth_warmup", 0), ("hysteresis", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                msg = f"`{name}` must be a whole number of steps >= {least}, got {value!r}"
                raise PolicyError(msg)

    def _bounds(self) -> dict[str, tuple[bool, str]]:
        if self.imitates:
            names = ("init_scale", "growth_factor", "backoff_factor")
            return {name: (getattr(self, name) > 0, "> 0") for name in names}
        low, high, init = self.min_scale, self.max_scale, self.init_scale
        shrinks = 0 < self.backoff_factor < 1 if self.backoff_op == "mul" else None
        return {
            "min_scale": (
                2.0**-126 <= low < math.inf,
                "finite and >= 2**-126, so that 1 / scale is finite",
            ),
            "max_scale": (low <= high < math.inf, f"finite and >= min_scale ({low})"),
            "init_scale": (
                low <= init <= high,
                f"finite and in [min_scale, max_scale] = [{low}, {high}]",
            ),
            "growth_factor": (1 < self.growth_factor < math.inf, "finite and > 1"),
            "backoff_factor": (
                1 < self.backoff_factor < math.inf if shrinks is None else shrinks,
                "finite and > 1 (a divisor)" if shrinks is None else "finite and in (0, 1)",
            ),
        }

    @classmethod
    def none(cls) -> LossScale:
        """Return the rule for formats with float32's range: the factor is always 1."""
        return cls(kind="none", init_scale=1.0)

    @classmethod
    def static(cls, scale: float) -> LossScale:
        """Return a constant factor ``scale``, > 0."""
        return cls("static", scale, min_scale=scale, max_scale=scale)

    @classmethod
    def named(cls, name: str, **changes: Any) -> LossScale:
        """Return the machine of another library, with its defaults or with ``changes``.

        Args:
            name: one of ``mpcore.scaling_presets.PRESETS``, such as ``"torch"``.
            changes: fields that differ, such as ``growth_interval=100``.

        Raises:
            PolicyError: no preset or field has that name.

        Example:
            >>> LossScale.named("deepspeed", growth_interval=100).hysteresis
            2
        """
        from mpcore.scaling_presets import PRESETS  # presets are rules: they import this module

        base = PRESETS[check_choice("loss_scale", name, PRESETS)]
        known = [item.name for item in fields(cls) if item.name not in ("kind", "imitates")]
        for key, value in changes.items():
            check_choice("loss_scale field", key, known)
            if base.factor_dtype == "float32" and key.endswith("_factor"):
                changes[key] = float(np.float32(value))  # the native narrows it too
        return replace(base, **changes)

    @classmethod
    def parse(cls, text: str) -> LossScale:
        """Return the rule that ``str`` wrote.

        Raises:
            PolicyError: the text is not of that form, with the field that is wrong.

        Example:
            >>> LossScale.parse("dynamic(init_scale=1024, growth_interval=50)").init_scale
            1024.0
        """
        match = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text.strip())
        if match is None:
            msg = f"`loss_scale` must look like 'dynamic(init_scale=1024)', got {text!r}"
            raise PolicyError(msg)
        given: dict[str, Any] = {"kind": match[1]}
        for part in filter(None, (piece.strip() for piece in (match[2] or "").split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            given[name if equals else "init_scale"] = value if equals else name
        return cls.from_dict(given)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LossScale:
        """Return the rule that ``to_dict`` wrote; fields left out take their default.

        Raises:
            PolicyError: an unknown field, or a value that is no number.
        """
        from mpcore.scaling_presets import PRESETS

        given = dict(data)
        kind = check_choice("loss_scale.kind", given.pop("kind", "dynamic"), [*_KINDS, *PRESETS])
        types = {item.name: str(item.type) for item in fields(cls)}
        for name, value in given.items():
            check_choice("loss_scale field", name, [*types][1:-1])
            given[name] = _read(name, types[name], value)
        if kind == "none":
            return cls.none()
        if kind == "static":
            return cls.static(given.get("init_scale", 2.0**16))
        return cls(**given) if kind == "dynamic" else cls.named(kind, **given)

    def to_dict(self) -> dict[str, Any]:
        """Return its kind or preset, and what differs from that one's defaults."""
        from mpcore.scaling_presets import PRESETS

        if self.kind == "none":
            return {"kind": "none"}
        if self.kind == "static":
            return {"kind": "static", "init_scale": self.init_scale}
        base = PRESETS[self.imitates] if self.imitates else LossScale()
        changed = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) != getattr(base, item.name)
        }
        return {"kind": self.imitates or "dynamic", **changed}

    def __str__(self) -> str:
        """Return the short form: only what differs from the default."""
        data = self.to_dict()
        kind = data.pop("kind")
        inside = ", ".join(f"{name}={value}" for name, value in data.items())
        return f"{kind}({inside})" if inside else kind


def _read(name: str, kind: str, value: Any) -> Any:
    """Return a field's value from text or JSON."""
    if "None" in kind and value in (None, "None"):
        return None
    if kind == "str":
        return str(value)
    try:
        if kind == "bool":
            return {"True": True, "False": False}[str(value)]
        return int(value) if kind.startswith("int") else float(value)
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"`loss_scale.{name}` must be a {kind.split(' ')[0]} number, got {value!r}"
        raise PolicyError(msg.replace("a bool number", "True or False")) from exc


def initial_state(rule: LossScale) -> ScaleState:
    """Return the state before the first step."""
    return ScaleState(narrow(rule, rule.init_scale), good_steps=-rule.growth_warmup)


def transition(
    rule: LossScale,
    state: Any,
    finite: Any,
    where: Callable[[Any, Any, Any], Any],
    narrow: Callable[[Any], Any],
) -> tuple[Any, ...]:
    """Return the state for the next step; branch-free, so that every framework can trace it.

    Runs verbatim on Python numbers and numpy, in torch (eager and compiled), in
    ``tf.function``, and in MindSpore (eager, ``ms.jit`` and graph mode).

    Args:
        rule: constants of the machine; Python values, baked into a traced graph.
        state: the fields of ScaleState that this step was run with; left untouched.
        finite: 0-d bool: no inf or NaN in any gradient of any rank.
        where: the framework's ``where(condition, x, y)``.
        narrow: rounds a product to the format of the scale; on float32 tensors it returns
            what it is given.

    Returns:
        The next state. A plain tuple, since MindSpore's graph compiler leaves a NamedTuple to
        the interpreter and loses its dtype. Fields that the rule does not need stay the
        same objects.

    Example:
        >>> rule = LossScale(init_scale=8.0, growth_interval=2)
        >>> state = transition(rule, (8.0, 1, 0, 0, 0, 0, -1, 0), True, _pick, float)
        >>> state[:3]
        (16.0, 0, 0)
    """
    scale, good, skipped, bad, in_a_row, steps, last, overflows = state
    skipped = where(finite, skipped, skipped + 1)
    if rule.max_skips is not None:
        in_a_row = where(finite, in_a_row * 0, in_a_row + 1)
    if rule.kind != "dynamic":
        return scale, good, skipped, bad, in_a_row, steps, last, overflows

    down = _lowered(rule, scale, where, narrow)
    if rule.tolerance is not None:
        overflows = where(finite, overflows, overflows + 1)
        fire = overflows / (steps - last) >= rule.tolerance
        down = where(fire, down, scale)
        overflows = where(finite, overflows, where(fire, overflows * 0, overflows))
        last = where(finite, last, where(fire, steps, last))
    elif rule.hysteresis > 1:
        bad = where(finite, bad, bad + 1)
        fire = bad >= rule.hysteresis
        down = where(fire, down, scale)
        if "backoff" in rule.refill:
            bad = where(finite, bad, where(fire, bad * 0, bad))

    good = where(finite, good + 1, good * 0 - rule.growth_warmup)
    due = good >= rule.growth_interval
    up = _raised(rule, scale, where, narrow)
    if rule.hysteresis > 1 and "growth" in rule.refill:
        bad = where(due, bad * 0, bad)
    if rule.hysteresis > 1 and "good" in rule.refill:
        bad = where(finite, bad * 0, bad)
    if rule.tolerance is not None:
        last = where(due, steps, last)
        steps = steps + 1
    scale = where(finite, where(due, up, scale), down)
    good = where(due, good * 0, good)
    return scale, good, skipped, bad, in_a_row, steps, last, overflows


def _lowered(rule: LossScale, scale: Any, where: Any, narrow: Any) -> Any:
    """Return the scale after a back-off; unchanged where that ends the run."""
    if rule.backoff_op == "mul":
        shrunk = narrow(scale * rule.backoff_factor)
    elif rule.backoff_op == "div":
        shrunk = narrow(scale / rule.backoff_factor)
    else:
        shrunk = narrow(scale * rule.reciprocal)
    down = where(shrunk >= rule.min_scale, shrunk, scale * 0 + rule.min_scale)
    if rule.abort_below is not None:
        down = where(down > rule.abort_below, down, scale)
    return down


def _raised(rule: LossScale, scale: Any, where: Any, narrow: Any) -> Any:
    """Return the scale after a growth."""
    grown = narrow(scale * rule.growth_factor)
    if rule.nonfinite_growth == "keep":
        grown = where(grown <= _FLOAT32_MAX, grown, scale)
    elif rule.nonfinite_growth == "clamp":
        grown = where(grown <= _FLOAT32_MAX, grown, scale * 0 + _FLOAT32_MAX)
    return where(grown <= rule.max_scale, grown, scale * 0 + rule.max_scale)


def narrow(rule: LossScale, value: float) -> float:
    """Return a number in the format that the rule keeps its scale in."""
    if rule.state_dtype == "float64":
        return value
    with np.errstate(over="ignore"):  # inf is what a float32 scale becomes
        return float(np.float32(value))


def inverse(scale: float) -> float:
    """Return what gradients are multiplied by: float32 of 1 / scale; inf for a scale of 0.

    Source: one division in double, one rounding, as torch.amp.GradScaler, torch 2.13.0.
    """
    value = 1.0 / scale if scale else math.inf
    return float(np.float32(value)) if value <= _FLOAT32_MAX else math.inf


def _pick(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


def advance(rule: LossScale, state: ScaleState, finite: bool) -> ScaleState:
    """Return the next state on the host: ``transition`` on numbers, in the rule's formats.

    Raises:
        LossScaleError: the rule ends the run here; see ``check_abort``.
    """
    moved = transition(rule, state, finite, _pick, lambda x: narrow(rule, x))
    check_abort(rule, state, ScaleState(*moved))
    return ScaleState(*moved)


def check_abort(rule: LossScale, before: ScaleState, after: ScaleState) -> None:
    """Raise where the rule ends a run: at its floor, below a limit, after too many skips.

    Called on the host after the step; a traced step cannot raise.

    Raises:
        LossScaleError: with the reason and the scale.
    """
    if after.skipped_steps == before.skipped_steps:
        return
    if rule.tolerance is not None:
        fires = after.overflows == 0
    else:
        fires = rule.hysteresis <= 1 or after.bad_steps >= rule.hysteresis
    if rule.raises_at_min and fires and before.scale == rule.min_scale:
        msg = f"overflow at the smallest loss scale {before.scale:g}: the run cannot go on"
        raise LossScaleError(msg)
    if rule.abort_below is not None and fires:
        free = replace(rule, abort_below=None)
        lowered = _lowered(free, before.scale, _pick, lambda x: narrow(rule, x))
        if lowered <= rule.abort_below:
            msg = f"the loss scale would fall to {lowered:g}: the run cannot go on"
            raise LossScaleError(msg)
    if rule.max_skips is not None and after.skips_in_a_row > rule.max_skips:
        msg = f"more than {rule.max_skips} steps in a row overflowed, at scale {after.scale:g}"
        raise LossScaleError(msg)
