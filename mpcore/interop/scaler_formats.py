"""Where other libraries keep the numbers of their loss scalers: one row a format, as data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import CheckpointError, PolicyError
from mpcore.scaling.loss_scale import PRESETS
from mpcore.scaling.reachable import check_state, scale_range
from mpcore.scaling.transition import LossScale, LossScaleState, narrow

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMATS", "NativeFormat", "multiplier", "patience"]

_BOTH = "growth_factor, backoff_factor"


@dataclass(frozen=True)
class NativeFormat:
    """Where the numbers of a loss scale stand in the dict of one library.

    This class reads machines that count good steps, such as torch's; ``_Iterations`` those
    that number all steps.

    Attributes:
        name: what it is called here.
        source: project, file and version that was read.
        preset: the machine, by its name in ``mpcore/scaling/presets.toml``.
        scale: key of the scale.
        good: key of the good steps since the last change.
        bad: key of the skipped steps that count towards a back-off; "" where there is none.
        rule: key to field of LossScale; ``_BOTH`` for one factor up and down.
        whole: keys of factors that the library takes as whole numbers only.
        switch: key that is false for a constant scale; "" where a constant has no format.
        caution: what the dict does not say, or the library does otherwise; "" for nothing.
    """

    name: str
    source: str
    preset: str
    scale: str
    good: str
    rule: dict[str, str] = field(default_factory=dict)
    bad: str = ""
    whole: tuple[str, ...] = ()
    switch: str = ""
    caution: str = ""

    @property
    def needed(self) -> tuple[str, ...]:
        """Keys that every dict of the format has."""
        return tuple(filter(None, (self.scale, *self.rule, self.good, self.bad, self.switch)))

    @property
    def possible(self) -> tuple[str, ...]:
        """Keys that a dict of the format may have, in their order."""
        return self.needed

    def fits(self, data: Mapping[str, Any]) -> bool:
        """Return whether the keys of ``data`` are those of this format."""
        return set(self.needed) <= set(data) <= set(self.possible)

    def read(self, data: Mapping[str, Any]) -> tuple[LossScale, LossScaleState]:
        """Return the rule and the state that a dict says.

        Raises:
            CheckpointError: a key, with its rule and its value.
        """
        self.check_keys(data)
        values = _Values(self.name, data)
        scale = values.scale(self.scale)
        if self.switch and not values.flag(self.switch):
            return _static(self.name, self.scale, scale)
        changes: dict[str, Any] = {}
        for key, target in self.rule.items():
            if target in ("growth_interval", "hysteresis") or key in self.whole:
                value: Any = values.count(key, 1)
            else:
                value = values.positive(key)
            changes |= dict.fromkeys(target.split(", "), value)
        rule = _rule(self.preset, scale, changes)
        state = LossScaleState(
            narrow(rule, scale),
            good_steps=values.count(self.good),
            bad_steps=values.count(self.bad) if self.bad else 0,
        )
        check_state(
            rule, state, {"scale": self.scale, "good_steps": self.good} | {"bad_steps": self.bad}
        )
        return rule, state

    def write(self, rule: LossScale, state: LossScaleState) -> dict[str, Any]:
        """Return the nearest dict; what is lost is found by reading it again."""
        dynamic = rule.kind == "dynamic"
        data: dict[str, Any] = {self.scale: self.nearest_scale(rule, state)}
        interval, waits = PRESETS[self.preset].growth_interval, 1
        for key, target in self.rule.items():
            data[key] = value = _rule_value(rule if dynamic else PRESETS[self.preset], target)
            if target == "growth_interval":
                interval = value
            elif target == "hysteresis":
                waits = value
            elif key in self.whole:
                data[key] = max(1, round(value))
        data[self.good] = min(max(int(state.good_steps), 0), interval - 1)
        if self.bad:
            data[self.bad] = min(max(int(state.bad_steps), 0), waits - 1)
        if self.switch:
            data[self.switch] = dynamic
        return data

    def nearest_scale(self, rule: LossScale, state: LossScaleState) -> float:
        """Return the scale as the native machine can hold it."""
        if rule.kind != "dynamic":
            return float(state.scale)
        low, high = scale_range(PRESETS[self.preset])
        if self.floor:
            low = _rule_value(rule, "min_scale")
        return narrow(PRESETS[self.preset], min(max(float(state.scale), low), high))

    @property
    def floor(self) -> bool:
        """Whether the dict holds the smallest scale."""
        return "min_scale" in self.rule.values()

    def check_keys(self, data: Mapping[str, Any]) -> None:
        """Raise CheckpointError unless the keys are those of this format."""
        lacking = [key for key in self.needed if key not in data]
        unknown = [key for key in data if key not in self.possible]
        for kind, keys in (("lacks", lacking), ("does not have", unknown)):
            if keys:
                msg = (
                    f"`{self.name}` state {kind} {', '.join(map(repr, keys))}; its keys are "
                    f"{', '.join(self.possible)}"
                )
                raise CheckpointError(msg)


@dataclass(frozen=True)
class _Nested(NativeFormat):
    """apex: one dict per loss, each in its own entry."""

    def fits(self, data: Mapping[str, Any]) -> bool:
        return bool(data) and all(re.fullmatch(r"loss_scaler\d+", str(key)) for key in data)

    def read(self, data: Mapping[str, Any]) -> tuple[LossScale, LossScaleState]:
        if not self.fits(data) or len(data) != 1:
            msg = (
                f"`{self.name}` state must hold one entry such as 'loss_scaler0', got "
                f"{', '.join(map(repr, data)) or 'none'}: convert each loss on its own"
            )
            raise CheckpointError(msg)
        ((key, inside),) = data.items()
        if not isinstance(inside, dict):
            msg = f"`{key}` must be a dict, got {inside!r}"
            raise CheckpointError(msg)
        return super().read(inside)

    def write(self, rule: LossScale, state: LossScaleState) -> dict[str, Any]:
        return {"loss_scaler0": super().write(rule, state)}


@dataclass(frozen=True)
class _Boxed(NativeFormat):
    """Paddle: the scale is an array of one element."""

    def read(self, data: Mapping[str, Any]) -> tuple[LossScale, LossScaleState]:
        scale = data.get(self.scale)
        if isinstance(scale, list) and len(scale) == 1:
            data = {**data, self.scale: scale[0]}
        return super().read(data)

    def write(self, rule: LossScale, state: LossScaleState) -> dict[str, Any]:
        data = super().write(rule, state)
        return {**data, self.scale: [data[self.scale]]}


@dataclass(frozen=True)
class _Iterations(NativeFormat):
    """MindSpore's manager: the number of the next step, from 1, and that of the last overflow."""

    @property
    def needed(self) -> tuple[str, ...]:
        return (self.scale, *self.rule, "cur_iter", "last_overflow_iter", "bad_step")

    def read(self, data: Mapping[str, Any]) -> tuple[LossScale, LossScaleState]:
        self.check_keys(data)
        values = _Values(self.name, data)
        scale = values.scale(self.scale)
        changes = dict.fromkeys(_BOTH.split(", "), values.positive("scale_factor"))
        window = values.count("scale_window", 1)
        rule = _rule(self.preset, scale, {**changes, "growth_interval": window})
        since = values.since_overflow(first=1)
        state = LossScaleState(scale, since % window, skips_in_a_row=values.count("bad_step"))
        check_state(rule, state, {"scale": self.scale})
        return rule, state

    def write(self, rule: LossScale, state: LossScaleState) -> dict[str, Any]:
        return {
            self.scale: self.nearest_scale(rule, state),
            "scale_factor": rule.growth_factor,
            "scale_window": rule.growth_interval,
            "cur_iter": 1 + max(int(state.good_steps), 0),
            "last_overflow_iter": 0,
            "bad_step": int(state.skips_in_a_row),
        }


@dataclass(frozen=True)
class _DeepSpeed(_Iterations):
    """DeepSpeed: steps numbered from 0, hysteresis counted down, one good step that is free.

    The first six keys are those of FP16_Optimizer's state_dict, from which a constant scale
    leaves out the last three of them; the others are attributes of the loss scaler, where the
    rest of the rule stands. Without them the optimizer's own values hold: a floor of 1, which
    it does not end the run at.
    """

    @property
    def needed(self) -> tuple[str, ...]:
        return (self.switch, self.scale, "cur_iter")

    @property
    def possible(self) -> tuple[str, ...]:
        counts = ("last_overflow_iter", "scale_factor", "scale_window", "cur_hysteresis")
        config = ("delayed_shift", "min_scale", "consecutive_hysteresis")
        return (*self.needed, *counts, *config, "raise_error_at_min_scale")

    @property
    def floor(self) -> bool:
        return True

    def fits(self, data: Mapping[str, Any]) -> bool:
        return super().fits(data) and (data[self.switch] is False or "scale_window" in data)

    def read(self, data: Mapping[str, Any]) -> tuple[LossScale, LossScaleState]:
        self.check_keys(data)
        values = _Values(self.name, data)
        scale = values.scale(self.scale)
        if not values.flag(self.switch):
            return _static(self.name, self.scale, scale)
        values.check_there("last_overflow_iter", "scale_factor", "scale_window")
        left = values.count("cur_hysteresis", 1) if "cur_hysteresis" in data else 0
        # 2 is the default of DeepSpeed's configuration; optimizers that keep no count have none.
        shift = max(2, left) if left else 1
        if "delayed_shift" in data:
            shift = values.count("delayed_shift", 1)
        if left > shift:
            msg = f"`cur_hysteresis` must be in [1, {shift}] (delayed_shift), got {left}"
            raise CheckpointError(msg)
        consecutive = "consecutive_hysteresis" in data and values.flag("consecutive_hysteresis")
        changes = {
            **dict.fromkeys(_BOTH.split(", "), values.positive("scale_factor")),
            "growth_interval": values.count("scale_window", 1),
            "hysteresis": shift,
            "hysteresis_reset": "good" if consecutive else "growth",
            "min_scale": values.positive("min_scale") if "min_scale" in data else 1.0,
            "raises_at_min": "raise_error_at_min_scale" in data
            and values.flag("raise_error_at_min_scale"),
        }
        rule = _rule(self.preset, scale, changes)
        since = values.since_overflow(first=0) - 1
        state = LossScaleState(
            scale,
            good_steps=since % rule.growth_interval if since >= 0 else -1,
            bad_steps=shift - left if left else 0,
        )
        check_state(rule, state, {"scale": self.scale})
        return rule, state

    def write(self, rule: LossScale, state: LossScaleState) -> dict[str, Any]:
        data = {
            self.switch: rule.kind == "dynamic",
            self.scale: self.nearest_scale(rule, state),
            "cur_iter": max(int(state.good_steps) + 1, 0),
        }
        if rule.kind != "dynamic":
            return {**data, "cur_iter": 0}
        shift = patience(rule)
        return {
            **data,
            "last_overflow_iter": -1,
            "scale_factor": rule.growth_factor,
            "scale_window": rule.growth_interval,
            "cur_hysteresis": max(shift - int(state.bad_steps), 1),
            "delayed_shift": shift,
            "min_scale": _rule_value(rule, "min_scale"),
            "consecutive_hysteresis": "good" in rule.quirks.hysteresis_reset.split("+"),
            "raise_error_at_min_scale": rule.quirks.raises_at_min,
        }


_TORCH = {
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
}

FORMATS: dict[str, NativeFormat] = {
    row.name: row
    for row in (
        NativeFormat(
            "torch",
            "torch.amp.GradScaler.state_dict, torch 2.13.0",
            preset="torch",
            scale="scale",
            rule=_TORCH,
            good="_growth_tracker",
        ),
        NativeFormat(
            "torch_npu",
            "torch_npu.npu.amp.GradScaler.state_dict, Ascend/pytorch 9e73e708ab93",
            preset="torch_npu",
            scale="scale",
            rule=_TORCH,
            good="_growth_tracker",
            switch="dynamic",
            caution="`dynamic`: with False torch_npu applies non-finite steps, mpcore skips them",
        ),
        NativeFormat(
            "keras",
            "variables and get_config of keras.optimizers.LossScaleOptimizer, Keras 3.15.1",
            preset="keras",
            scale="dynamic_scale",
            rule={"initial_scale": "init_scale", "dynamic_growth_steps": "growth_interval"},
            good="step_counter",
        ),
        NativeFormat(
            "mindspore",
            "attributes of mindspore.amp.DynamicLossScaler, MindSpore 2.10.0",
            preset="mindspore",
            scale="scale_value",
            rule={"scale_window": "growth_interval", "scale_factor": _BOTH},
            good="counter",
            whole=("scale_factor",),
        ),
        _Iterations(
            "mindspore_manager",
            "attributes of mindspore.amp.DynamicLossScaleManager, MindSpore 2.10.0",
            preset="mindspore_manager",
            scale="loss_scale",
            rule={"scale_factor": _BOTH, "scale_window": "growth_interval"},
            good="cur_iter",
        ),
        _DeepSpeed(
            "deepspeed",
            "FP16_Optimizer.state_dict and attributes of DynamicLossScaler, "
            "deepspeedai/DeepSpeed edaa72212672 (0.19.6)",
            preset="deepspeed",
            scale="cur_scale",
            good="cur_iter",
            switch="dynamic_loss_scale",
        ),
        _Nested(
            "apex",
            "apex.amp.state_dict, NVIDIA/apex e13873debc46",
            preset="apex",
            scale="loss_scale",
            good="unskipped",
            caution="the format does not say whether the scale is constant, nor the interval, "
            "floor and cap: a dynamic scale with apex's defaults is taken",
        ),
        _Boxed(
            "paddle",
            "paddle.amp.GradScaler.state_dict, paddlepaddle 3.3.1",
            preset="paddle",
            scale="scale",
            rule={
                "incr_ratio": "growth_factor",
                "decr_ratio": "backoff_factor",
                "incr_every_n_steps": "growth_interval",
                "decr_every_n_nan_or_inf": "hysteresis",
            },
            good="incr_count",
            bad="decr_count",
            switch="use_dynamic_loss_scaling",
        ),
        NativeFormat(
            "jmp",
            "fields of jmp.DynamicLossScale, jmp 0.0.4",
            preset="jmp",
            scale="loss_scale",
            rule={"period": "growth_interval", "factor": _BOTH, "min_loss_scale": "min_scale"},
            good="counter",
        ),
    )
}


class _Values:
    """Numbers of a native dict, each checked when it is taken."""

    def __init__(self, name: str, data: Mapping[str, Any]) -> None:
        self._name, self._data = name, data

    def _bad(self, key: str, rule: str) -> CheckpointError:
        return CheckpointError(
            f"`{key}` of a {self._name} state must be {rule}, got {self._data[key]!r}"
        )

    def check_there(self, *keys: str) -> None:
        for key in keys:
            if key not in self._data:
                msg = f"`{self._name}` state lacks {key!r}"
                raise CheckpointError(msg)

    def _number(self, key: str, rule: str) -> float:
        value = self._data[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, rule)
        try:
            return float(value)
        except OverflowError:
            raise self._bad(key, rule) from None

    def scale(self, key: str) -> float:
        value = self._number(key, "a number >= 0")
        if not value >= 0:
            raise self._bad(key, "a number >= 0")
        return value

    def positive(self, key: str) -> float:
        value = self._number(key, "a finite number > 0")
        if not 0 < value < math.inf:
            raise self._bad(key, "a finite number > 0")
        return value

    def count(self, key: str, least: int = 0) -> int:
        value = self._data[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self._bad(key, f"a whole number in [{least}, {2**31 - 1}]")
        return value

    def flag(self, key: str) -> bool:
        if not isinstance(self._data[key], bool):
            raise self._bad(key, "true or false")
        return bool(self._data[key])

    def since_overflow(self, first: int) -> int:
        """Return the steps done since the last overflow; ``first`` is the number of step one."""
        now, last = self.count("cur_iter", first), self.count("last_overflow_iter", first - 1)
        if last >= now:
            key = "last_overflow_iter"
            raise self._bad(key, f"below cur_iter ({now})")
        return now - 1 - last


def _rule(preset: str, scale: float, changes: dict[str, Any]) -> LossScale:
    """Return a preset with changes; its first scale gives way if ``scale`` is out of reach."""
    for name in {"init_scale", "min_scale"} & set(changes):
        changes[name] = narrow(PRESETS[preset], changes[name])
    try:
        rule = LossScale.named(preset, **changes)
        low, high = scale_range(rule)
        if not low <= scale <= high and 0 < scale < math.inf:
            return replace(rule, init_scale=narrow(rule, scale))
    except PolicyError as exc:
        raise CheckpointError(str(exc)) from exc
    return rule


def _static(name: str, key: str, scale: float) -> tuple[LossScale, LossScaleState]:
    if not 2.0**-126 <= narrow(LossScale(), scale) < math.inf:
        msg = f"`{key}` of a {name} state must be finite and >= 2**-126, got {scale!r}"
        raise CheckpointError(msg)
    rule = LossScale.static(narrow(LossScale(), scale))
    return rule, LossScaleState(rule.init_scale)


def multiplier(rule: LossScale) -> float:
    """Return what an overflow multiplies the scale by."""
    if rule.quirks.backoff_op == "mul":
        return rule.backoff_factor
    return (
        rule.reciprocal if rule.quirks.backoff_op == "mul_reciprocal" else 1.0 / rule.backoff_factor
    )


def patience(rule: LossScale) -> int:
    """Return how many skipped steps one back-off takes, as far as a count can say it."""
    return 1 if rule.quirks.overflow_ratio is not None else max(1, rule.quirks.hysteresis)


def _rule_value(rule: LossScale, target: str) -> Any:
    if target == "backoff_factor":
        return multiplier(rule)
    if target == "hysteresis":
        return patience(rule)
    if target == "min_scale":
        return rule.min_scale or 2.0**-126
    return rule.flat()[target.partition(", ")[0]]
