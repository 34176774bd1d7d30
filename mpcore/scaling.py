"""Loss scaling: the rule, the state, and the one transition that every framework runs."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpcore.errors import PolicyError, check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LossScale", "ScaleState", "advance", "initial_state", "transition"]

_KINDS = ("none", "static", "dynamic")


class ScaleState(NamedTuple):
    """State of loss scaling: numbers on the host, 0-d arrays inside a traced step.

    Attributes:
        scale: factor the loss is multiplied by, dimensionless, > 0, a float32 value.
        good_steps: finite steps since the scale last changed, in [0, growth_interval), int32.
        skipped_steps: steps skipped since the start, >= 0, int32.
    """

    scale: Any
    good_steps: Any
    skipped_steps: Any


@dataclass(frozen=True)
class LossScale:
    """How the factor on the loss is chosen; immutable, hashable, round-trips through ``str``.

    A dynamic scale backs off on overflow and grows after a quiet run. Floor and cap keep it
    a positive finite number, so no state exists from which finite steps could not recover.

    Source: skip and reduce on overflow, Micikevicius et al. 2018, arXiv:1710.03740; the
    defaults of growth and back-off are those of torch.amp.GradScaler, torch 2.13.0. The cap
    and the floor are ours: torch reaches 0 and Keras 3.15 reaches inf, and neither returns.

    Attributes:
        kind: ``"dynamic"``, ``"static"`` (constant), or ``"none"`` (the factor is 1).
            Steps with non-finite gradients are skipped under each of them.
        init_scale: first scale, in [min_scale, max_scale], dimensionless.
        growth_factor: multiplier on growth, > 1.
        backoff_factor: multiplier on overflow, in (0, 1).
        growth_interval: finite steps before one growth, in optimizer steps, >= 1.
        min_scale: floor, >= 2**-126, may be below 1; overflow at the floor still skips the step.
        max_scale: cap, finite in float32; growth stops there.

    All factors and scales are rounded to float32 when they are checked, so that the
    trajectory is the same number for number in every framework.
    """

    kind: str = "dynamic"
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24

    def __post_init__(self) -> None:
        """Refuse contradictions; each message names the field, the rule and the value."""
        check_choice("loss_scale.kind", self.kind, _KINDS)
        interval = self.growth_interval
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            msg = f"`growth_interval` must be a whole number of steps >= 1, got {interval!r}"
            raise PolicyError(msg)
        rules = {
            "min_scale": (self.min_scale >= 2.0**-126, ">= 2**-126, so that 1 / scale is finite"),
            "max_scale": (self.max_scale >= self.min_scale, f">= min_scale ({self.min_scale})"),
            "init_scale": (
                self.min_scale <= self.init_scale <= self.max_scale,
                f"in [min_scale, max_scale] = [{self.min_scale}, {self.max_scale}]",
            ),
            "growth_factor": (self.growth_factor > 1, "> 1"),
            "backoff_factor": (0 < self.backoff_factor < 1, "in (0, 1)"),
        }
        for name, (holds, rule) in rules.items():
            value = getattr(self, name)
            if not holds or not math.isfinite(value):
                msg = f"`{name}` must be finite and {rule}, got {value!r}"
                raise PolicyError(msg)
            if float(np.float32(value)) != value:
                near = float(np.float32(value))
                msg = f"`{name}` must be a float32 value, got {value!r}; the nearest is {near!r}"
                raise PolicyError(msg)

    @classmethod
    def none(cls) -> LossScale:
        """Return the rule for formats with float32's range: the factor is always 1."""
        return cls(kind="none", init_scale=1.0)

    @classmethod
    def static(cls, scale: float) -> LossScale:
        """Return a constant factor ``scale``, > 0."""
        return cls("static", scale, min_scale=scale, max_scale=scale)

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
        kind, arguments = match[1], match[2] or ""
        given: dict[str, Any] = {"kind": kind}
        for part in filter(None, (piece.strip() for piece in arguments.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            given[name if equals else "init_scale"] = value if equals else name
        return cls.from_dict(given)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LossScale:
        """Return the rule that ``to_dict`` wrote; fields left out take their default.

        Raises:
            PolicyError: an unknown field, or a value that is no number.
        """
        given = dict(data)
        kind = check_choice("loss_scale.kind", given.pop("kind", "dynamic"), _KINDS)
        known = [field.name for field in fields(cls)][1:]
        for name, value in given.items():
            check_choice("loss_scale field", name, known)
            try:
                given[name] = int(value) if name == "growth_interval" else float(value)
            except (TypeError, ValueError) as exc:
                msg = f"`loss_scale.{name}` must be a number, got {value!r}"
                raise PolicyError(msg) from exc
        if kind == "none":
            return cls.none()
        if kind == "static":
            return cls.static(given.get("init_scale", 2.0**16))
        return cls(kind, **given)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that describe this kind, ready for JSON."""
        if self.kind == "none":
            return {"kind": "none"}
        if self.kind == "static":
            return {"kind": "static", "init_scale": self.init_scale}
        return asdict(self)

    def __str__(self) -> str:
        """Return the short form: only what differs from the default."""
        default = LossScale().to_dict()
        changed = {
            name: value
            for name, value in self.to_dict().items()
            if name != "kind" and value != default[name]
        }
        inside = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        return f"{self.kind}({inside})" if inside else self.kind


def initial_state(rule: LossScale) -> ScaleState:
    """Return the state before the first step."""
    return ScaleState(rule.init_scale, 0, 0)


def transition(
    rule: LossScale, state: Any, finite: Any, where: Callable[[Any, Any, Any], Any]
) -> tuple[Any, Any, Any]:
    """Return the state for the next step; branch-free, so that every framework can trace it.

    Runs verbatim on Python numbers and numpy, in torch (eager and compiled), in
    ``tf.function``, and in MindSpore (eager, ``ms.jit`` and graph mode).

    Args:
        rule: constants of the machine; Python numbers, baked into a traced graph.
        state: (scale, good_steps, skipped_steps) that this step was run with; left untouched.
        finite: 0-d bool: no inf or NaN in any gradient of any rank.
        where: the framework's ``where(condition, x, y)``.

    Returns:
        The next (scale, good_steps, skipped_steps). A plain tuple, since MindSpore's graph
        compiler leaves a NamedTuple to the interpreter and loses its dtype. On Python
        numbers the scale is not yet rounded to float32; ``advance`` does that.

    Example:
        >>> rule = LossScale(init_scale=8.0, growth_interval=2)
        >>> transition(rule, (8.0, 1, 0), True, lambda c, x, y: x if c else y)
        (16.0, 0, 0)
    """
    scale, good_steps, skipped_steps = state
    skipped_steps = where(finite, skipped_steps, skipped_steps + 1)
    if rule.kind != "dynamic":
        return scale, good_steps, skipped_steps
    good = where(finite, good_steps + 1, good_steps * 0)
    due = good >= rule.growth_interval
    grown = scale * rule.growth_factor
    shrunk = scale * rule.backoff_factor
    # Clamping (not refusing) commutes with rounding: float32 and float64 products agree.
    up = where(grown <= rule.max_scale, grown, scale * 0 + rule.max_scale)
    down = where(shrunk >= rule.min_scale, shrunk, scale * 0 + rule.min_scale)
    scale = where(finite, where(due, up, scale), down)
    return scale, where(due, good * 0, good), skipped_steps


def _pick(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


def advance(rule: LossScale, state: ScaleState, finite: bool) -> ScaleState:
    """Return the next state on the host: ``transition`` on numbers, scale rounded to float32."""
    scale, good_steps, skipped_steps = transition(rule, state, finite, _pick)
    return ScaleState(float(np.float32(scale)), good_steps, skipped_steps)
