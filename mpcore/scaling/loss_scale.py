"""The rule of the loss scale: constants of the machine, as one value."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mpcore.errors import PolicyError, check_choice
from mpcore.scaling.quirks import Quirks, check_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FIELD_TYPES", "PRESETS", "LossScale", "Quirks"]

_KINDS = ("none", "static", "dynamic")
_ALWAYS = ("skip_scope", "count_skipped_steps", "on_collapse", "patience")


@dataclass(frozen=True)
class LossScale:
    """How the factor on the loss is chosen; immutable, hashable, round-trips through ``str``.

    A dynamic scale backs off on overflow and grows after ``growth_interval`` finite steps. Under
    the defaults floor and cap keep it a positive finite number, so no state exists from which
    finite steps could not recover. ``LossScale.named("deepspeed")`` is another library's machine;
    ``mpcore/scaling/presets.toml`` holds them.

    Source: skip and reduce on overflow, Micikevicius et al. 2018, arXiv:1710.03740; the
    defaults of growth and back-off are those of torch.amp.GradScaler, torch 2.13.0. The cap
    and the floor are ours: torch reaches 0 and Keras 3.15 reaches inf, and neither returns.

    Attributes:
        kind: ``"dynamic"``, ``"static"`` (constant), or ``"none"`` (the factor is 1).
            Steps with non-finite gradients are skipped under each of them.
        init_scale: first scale, in [min_scale, max_scale], dimensionless.
        growth_factor: multiplier on growth, > 1.
        backoff_factor: multiplier on overflow, in (0, 1); a divisor > 1 under another
            ``quirks.backoff_op``.
        growth_interval: finite steps before one growth, in optimizer steps, >= 1.
        min_scale: floor, >= 2**-126, may be below 1; overflow at the floor still skips the step.
        max_scale: cap, finite in float32; growth stops there.
        quirks: what only imitations need.
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

    Under the default ``quirks.factor_dtype`` all factors and scales are float32 values, so that
    the trajectory is the same number for number in every framework.
    """

    kind: str = "dynamic"
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    quirks: Quirks = field(default_factory=Quirks)
    skip_scope: str = "all"
    count_skipped_steps: bool = False
    on_collapse: str = "warn"
    patience: int = 25
    preset: str = ""

    def __post_init__(self) -> None:
        """Refuse contradictions; each message names the field, the rule and the value."""
        check_choice("loss_scale.kind", self.kind, _KINDS)
        check_choice("skip_scope", self.skip_scope, ("all", "optimizer"))
        check_choice("on_collapse", self.on_collapse, ("warn", "raise", "ignore"))
        check_steps("growth_interval", self.growth_interval, 1)
        check_steps("patience", self.patience, 1)
        for name, (holds, rule) in self._bounds().items():
            value = getattr(self, name)
            if not holds:
                msg = f"`{name}` must be {rule}, got {value!r}"
                raise PolicyError(msg)
            near = self.quirks.factor(value)
            if near != value:
                msg = f"`{name}` must be a float32 value, got {value!r}; the nearest is {near!r}"
                raise PolicyError(msg)

    @property
    def can_abort(self) -> bool:
        """Whether some overflow ends the run with LossScaleError."""
        quirks = self.quirks
        limits = (quirks.abort_below, quirks.max_skips)
        return quirks.raises_at_min or any(limit is not None for limit in limits)

    @property
    def reciprocal(self) -> float:
        """1 / backoff_factor, in the format of the factors."""
        return self.quirks.factor(1.0 / self.backoff_factor)

    def _bounds(self) -> dict[str, tuple[bool, str]]:
        if self.preset:
            names = ("init_scale", "growth_factor", "backoff_factor")
            return {name: (getattr(self, name) > 0, "> 0") for name in names}
        low, high, init, back = self.min_scale, self.max_scale, self.init_scale, self.backoff_factor
        shrinks = (0 < back < 1, "finite and in (0, 1)")
        divides = (1 < back < math.inf, "finite and > 1 (a divisor)")
        return {
            "min_scale": (_invertible(low), _INVERTIBLE),
            "max_scale": (low <= high < math.inf, f"finite and >= min_scale ({low})"),
            "init_scale": (
                low <= init <= high,
                f"finite and in [min_scale, max_scale] = [{low}, {high}]",
            ),
            "growth_factor": (1 < self.growth_factor < math.inf, "finite and > 1"),
            "backoff_factor": shrinks if self.quirks.backoff_op == "mul" else divides,
        }

    @classmethod
    def of(cls, **given: Any) -> LossScale:
        """Return the rule with these fields, its own and those of its quirks side by side.

        Examples:
            >>> LossScale.of(init_scale=8.0, hysteresis=2).quirks.hysteresis
            2
        """
        quirks = {name: given.pop(name) for name in _QUIRKS if name in given}
        return cls(**given, quirks=Quirks(**quirks)) if quirks else cls(**given)

    def changed(self, **changes: Any) -> LossScale:
        """Return a copy with other values of fields, its own or those of its quirks."""
        return self.of(**{**self.flat(), **changes})

    def flat(self) -> dict[str, Any]:
        """Return every field by name, those of the quirks among the others, as texts have them."""
        return {
            name: getattr(self.quirks if name in _QUIRKS else self, name) for name in FIELD_TYPES
        }

    @classmethod
    def none(cls) -> LossScale:
        """Return the rule for formats with float32's range: the factor is always 1."""
        return cls(kind="none", init_scale=1.0)

    @classmethod
    def static(cls, scale: float) -> LossScale:
        """Return a constant factor ``scale``, > 0."""
        if not _invertible(scale):
            msg = f"a static `loss_scale` must be {_INVERTIBLE}, got {scale}"
            raise PolicyError(msg)
        return cls("static", scale, min_scale=scale, max_scale=scale)

    @classmethod
    def named(cls, name: str, **changes: Any) -> LossScale:
        """Return the machine of another library, with its defaults or with ``changes``.

        Args:
            name: one of ``mpcore.scaling.loss_scale.PRESETS``, such as ``"torch"``.
            changes: fields that differ, such as ``growth_interval=100``.

        Raises:
            PolicyError: no preset or field has that name.

        Examples:
            >>> LossScale.named("deepspeed", growth_interval=100).quirks.hysteresis
            2
        """
        base = PRESETS[check_choice("loss_scale", name, PRESETS)]
        for key, value in changes.items():
            check_choice("loss_scale field", key, _SETTABLE)
            if key.endswith("_factor"):
                changes[key] = base.quirks.factor(value)  # the native narrows it too
        return base.changed(**changes)

    @classmethod
    def parse(cls, text: str) -> LossScale:
        """Return the rule that ``str`` wrote; a number alone is a constant factor.

        Raises:
            PolicyError: the text is not of that form, with the field that is wrong.

        Examples:
            >>> LossScale.parse("dynamic(init_scale=1024, growth_interval=50)").init_scale
            1024.0
            >>> str(LossScale.parse("128"))
            'static(init_scale=128.0)'
        """
        if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text.strip(), re.IGNORECASE):
            return cls.static(float(text))
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
        for name, value in given.items():
            check_choice("loss_scale field", name, _SETTABLE)
            given[name] = _read(name, FIELD_TYPES[name], value)
        if kind in ("none", "static"):
            base = cls.none() if kind == "none" else cls.static(given.get("init_scale", 2.0**16))
            return replace(base, **{name: given[name] for name in _ALWAYS if name in given})
        return cls.of(**given) if kind == "dynamic" else cls.named(kind, **given)

    def to_dict(self) -> dict[str, Any]:
        """Return its kind or preset, and what differs from that one's defaults."""
        base = (PRESETS[self.preset] if self.preset else LossScale()).flat()
        changed = {name: value for name, value in self.flat().items() if value != base[name]}
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


_INVERTIBLE = "finite and >= 2**-126, so that 1 / scale is finite"


def _invertible(scale: float) -> bool:
    return 2.0**-126 <= scale < math.inf


_QUIRKS = {item.name: str(item.type) for item in fields(Quirks)}

FIELD_TYPES: dict[str, str] = {
    name: kind
    for item in fields(LossScale)
    for name, kind in (_QUIRKS.items() if item.name == "quirks" else [(item.name, str(item.type))])
}
"""Types of all fields by name, in the order in which texts and files have them."""

_SETTABLE = [name for name in FIELD_TYPES if name not in ("kind", "preset")]


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
    return {name: LossScale.of(preset=name, **row) for name, row in rows.items()}


PRESETS: dict[str, LossScale] = _presets()
"""The machines of other libraries by name; ``presets.toml`` holds them as data."""
