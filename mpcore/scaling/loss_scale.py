"""The rule of the loss scale: constants of the machine, as one value."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import PolicyError, check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PRESETS", "LossScale"]

_KINDS = ("none", "static", "dynamic")
_ALWAYS = ("skip_scope", "count_skipped_steps", "on_collapse", "patience")


@dataclass(frozen=True)
class LossScale:
    """How the factor on the loss is chosen; immutable, hashable, round-trips through ``str``.

    A dynamic scale backs off on overflow and grows after a quiet run. Under the defaults floor
    and cap keep it a positive finite number, so no state exists from which finite steps could
    not recover. The further fields exist to imitate other machines exactly:
    ``LossScale.named("deepspeed")``; ``mpcore/scaling/presets.toml`` holds them.

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
        hysteresis_reset: what sets the count of hysteresis back: any of ``"good"``, ``"growth"``,
            ``"backoff"``, joined by ``+``.
        overflow_ratio: None, or the share of skipped steps since the last change, in [0, 1], from
            which an overflow backs off.
        raises_at_min: an overflow at the floor raises LossScaleError.
        abort_below: a back-off to this or less is undone and raises LossScaleError.
        max_skips: more skipped steps in a row raise LossScaleError; None for no limit.
        state_dtype: format the scale is kept in.
        factor_dtype: format the factors are rounded to before a product.
        skip_scope: with several optimizers, one of which overflowed: ``"all"`` skip, or each
            ``"optimizer"`` judges its own gradients.
        count_skipped_steps: a skipped step counts for learning-rate schedules.
        on_collapse: what ``patience`` skipped steps in a row do, in ``amp.step``: ``"warn"``,
            ``"raise"`` LossScaleError, or ``"ignore"``. The message says whether the forward
            pass overflowed or only the gradients.
        patience: skipped steps in a row, >= 1; 25 is one more than lead from the default cap
            to the default floor.
        preset: name of the preset it came from; natives are taken as they are, ours is
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
    hysteresis_reset: str = "good"
    overflow_ratio: float | None = None
    raises_at_min: bool = False
    abort_below: float | None = None
    max_skips: int | None = None
    state_dtype: str = "float32"
    factor_dtype: str = "float32"
    skip_scope: str = "all"
    count_skipped_steps: bool = False
    on_collapse: str = "warn"
    patience: int = 25
    preset: str = field(default="")

    def __post_init__(self) -> None:
        """Refuse contradictions; each message names the field, the rule and the value."""
        check_choice("loss_scale.kind", self.kind, _KINDS)
        check_choice("backoff_op", self.backoff_op, ("mul", "div", "mul_reciprocal"))
        check_choice("nonfinite_growth", self.nonfinite_growth, ("keep", "clamp", "allow"))
        check_choice("skip_scope", self.skip_scope, ("all", "optimizer"))
        check_choice("on_collapse", self.on_collapse, ("warn", "raise", "ignore"))
        for name in ("state_dtype", "factor_dtype"):
            check_choice(name, getattr(self, name), ("float32", "float64"))
        for word in self.hysteresis_reset.split("+"):
            check_choice("hysteresis_reset", word, ("good", "growth", "backoff"))
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
        counts = {"growth_interval": 1, "growth_warmup": 0, "hysteresis": 0, "patience": 1}
        for name, least in counts.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                msg = f"`{name}` must be a whole number of steps >= {least}, got {value!r}"
                raise PolicyError(msg)

    def _bounds(self) -> dict[str, tuple[bool, str]]:
        if self.preset:
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
            name: one of ``mpcore.scaling.loss_scale.PRESETS``, such as ``"torch"``.
            changes: fields that differ, such as ``growth_interval=100``.

        Raises:
            PolicyError: no preset or field has that name.

        Example:
            >>> LossScale.named("deepspeed", growth_interval=100).hysteresis
            2
        """
        base = PRESETS[check_choice("loss_scale", name, PRESETS)]
        known = [item.name for item in fields(cls) if item.name not in ("kind", "preset")]
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
        given = dict(data)
        kind = check_choice("loss_scale.kind", given.pop("kind", "dynamic"), [*_KINDS, *PRESETS])
        types = {item.name: str(item.type) for item in fields(cls)}
        for name, value in given.items():
            check_choice("loss_scale field", name, [*types][1:-1])
            given[name] = _read(name, types[name], value)
        if kind in ("none", "static"):
            base = cls.none() if kind == "none" else cls.static(given.get("init_scale", 2.0**16))
            return replace(base, **{name: given[name] for name in _ALWAYS if name in given})
        return cls(**given) if kind == "dynamic" else cls.named(kind, **given)

    def to_dict(self) -> dict[str, Any]:
        """Return its kind or preset, and what differs from that one's defaults."""
        base = PRESETS[self.preset] if self.preset else LossScale()
        changed = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) != getattr(base, item.name)
        }
        if self.kind == "dynamic":
            return {"kind": self.preset or "dynamic", **changed}
        own = {"init_scale": self.init_scale} if self.kind == "static" else {}
        return {"kind": self.kind, **own, **{k: v for k, v in changed.items() if k in _ALWAYS}}

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


def _presets() -> dict[str, LossScale]:
    rows = tomllib.loads(files("mpcore.scaling").joinpath("presets.toml").read_text("utf-8"))
    return {name: LossScale(preset=name, **row) for name, row in rows.items()}


PRESETS: dict[str, LossScale] = _presets()
"""The machines of other libraries by name; ``presets.toml`` holds them as data."""
