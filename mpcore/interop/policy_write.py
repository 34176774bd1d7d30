"""Policies written in the terms of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpcore.policy.policy import PRESETS
from mpcore.scaling.loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpcore.policy.policy import Policy

__all__ = ["WRITERS"]

_BY_LIST = "layers are cast by torch's op list, not by the policy's map"


def _short(dtype: str) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]


def _to_keras(policy: Policy, lost: list[str]) -> str:
    if policy.compute == "float32":
        return "float32"
    if policy.by == "op":
        lost.append("by='op' (Keras casts per layer)")
    if policy.param != "float32":
        if policy.master != "none":
            lost.append("float32 masters (a pure policy of Keras has none)")
        return policy.param
    if policy.defaults != PRESETS["keras:mixed_float16"].defaults:
        lost.append("layers that stay float32 (Keras lowers every layer; set their dtype)")
    if policy.output != policy.compute:
        lost.append(f"output={policy.output} (give the last layer dtype='float32')")
    return f"mixed_{policy.compute}"


def _to_torch(policy: Policy, lost: list[str]) -> dict[str, Any]:
    if policy.by != "op" and policy.compute != "float32":
        lost.append(_BY_LIST)
    if policy.param != "float32":
        lost.append(f"parameters in {policy.param} (cast the model yourself)")
    value: dict[str, Any] = {
        "autocast": {"dtype": policy.compute, "enabled": policy.compute != "float32"}
    }
    value["scaler"] = _to_scaler(policy.scaling, lost)
    return value


def _to_scaler(rule: LossScale, lost: list[str]) -> dict[str, Any]:
    if rule.kind == "none":
        return {"enabled": False}
    if rule.kind == "static":
        lost.append("a constant loss scale (GradScaler has none; its interval is made endless)")
        return {"init_scale": rule.init_scale, "growth_interval": 2**31 - 1}
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    free = {name: getattr(rule, name) for name in names}
    if rule.quirks.backoff_op != "mul":
        free["backoff_factor"] = 1 / rule.backoff_factor
    own, theirs = rule.flat(), LossScale.named("torch").flat()
    for name in ("min_scale", "max_scale", "hysteresis", "overflow_ratio", "growth_warmup"):
        if own[name] != theirs[name]:
            lost.append(f"loss_scale.{name}={own[name]} (GradScaler has no such limit)")
    return free


def _to_fsdp(policy: Policy, lost: list[str]) -> dict[str, Any]:
    if policy.compute == "float32":
        return {"param_dtype": None, "reduce_dtype": None, "output_dtype": None}
    if policy.defaults != PRESETS["torch:half"].defaults:
        lost.append("layers that stay float32 (wrap them apart, with a policy of their own)")
    return {
        "param_dtype": policy.compute,
        "reduce_dtype": "float32",
        "output_dtype": policy.output,
        "cast_forward_inputs": policy.inputs == "cast",
    }


def _to_mindspore(policy: Policy, lost: list[str]) -> dict[str, Any]:
    for level in ("O1", "O2", "O3", "auto"):
        native = PRESETS[f"mindspore:{level}"]
        if (policy.by, policy.defaults) == (
            native.by,
            native.defaults,
        ) and policy.compute != "float32":
            return {"amp_level": level, "dtype": policy.compute}
    if policy.compute == "float32":
        return {"amp_level": "O0"}
    lost.append("the map of layers (no level of MindSpore has it; the nearest is auto)")
    return {"amp_level": "auto", "dtype": policy.compute}


def _to_jmp(policy: Policy, lost: list[str]) -> str:
    kept = [rule for rule in policy.defaults if rule.precision != "lower"]
    if policy.compute != "float32" and (kept or not policy.defaults):
        lost.append("layers that stay float32 (jmp casts where the model's code says so)")
    return f"params={policy.param},compute={policy.compute},output={policy.output}"


def _to_deepspeed(policy: Policy, lost: list[str]) -> dict[str, Any]:
    if policy.compute == "float32":
        return {"fp16": {"enabled": False}, "bf16": {"enabled": False}}
    if policy.by != "model":
        lost.append(f"by={policy.by!r} (DeepSpeed casts the whole model)")
    if policy.compute == "bfloat16":
        return {"bf16": {"enabled": True}}
    rule = policy.scaling
    section: dict[str, Any] = {"enabled": True}
    if rule.kind != "dynamic":
        return {"fp16": section | {"loss_scale": rule.init_scale}}
    power = rule.init_scale.hex().partition("p")
    if not power[0].startswith("0x1.0"):
        lost.append(f"loss_scale.init_scale={rule.init_scale} (DeepSpeed's is a power of two)")
    for name, native in (("growth_factor", 2.0), ("max_scale", float("inf"))):
        if getattr(rule, name) != native:
            lost.append(f"loss_scale.{name}={getattr(rule, name)} (DeepSpeed's is fixed)")
    return {
        "fp16": section
        | {
            "loss_scale": 0,
            "initial_scale_power": int(power[2]),
            "loss_scale_window": rule.growth_interval,
            "hysteresis": max(1, rule.quirks.hysteresis),
            "consecutive_hysteresis": "good" in rule.quirks.hysteresis_reset,
            "min_loss_scale": rule.min_scale,
        }
    }


def _to_accelerate(policy: Policy, lost: list[str]) -> dict[str, Any]:
    if policy.compute == "float32":
        return {"mixed_precision": "no"}
    if policy.by != "op":
        lost.append(_BY_LIST)
    return {"mixed_precision": _short(policy.compute)}


def _to_apex(policy: Policy, lost: list[str]) -> dict[str, Any]:
    rule = policy.scaling
    scale: Any = {"none": 1.0, "static": rule.init_scale}.get(rule.kind, "dynamic")
    if policy.compute == "float32":
        return {"opt_level": "O0"}
    if policy.compute == "bfloat16":
        lost.append("compute=bfloat16 (apex.amp has float16 alone)")
    if policy.by == "op":
        return {"opt_level": "O1", "loss_scale": scale}
    if policy.by == "layer":
        lost.append("the map of layers (apex casts functions by list)")
        return {"opt_level": "O1", "loss_scale": scale}
    keeps = any(rule.precision == "full" for rule in policy.defaults) or not policy.defaults
    level = "O2" if policy.master == "copy" else "O3"
    return {"opt_level": level, "keep_batchnorm_fp32": keeps, "loss_scale": scale}


WRITERS: dict[str, Callable[[Policy, list[str]], Any]] = {
    "keras": _to_keras,
    "torch": _to_torch,
    "torch_fsdp": _to_fsdp,
    "mindspore": _to_mindspore,
    "jmp": _to_jmp,
    "deepspeed": _to_deepspeed,
    "accelerate": _to_accelerate,
    "apex": _to_apex,
}
