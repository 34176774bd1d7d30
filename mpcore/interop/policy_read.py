"""Policies of other libraries, read: their objects, texts and configurations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore.errors import PolicyError, check_choice
from mpcore.numerics.dtypes import parse_dtype
from mpcore.policy.policy import PRESETS, Policy
from mpcore.policy.rule import Rule
from mpcore.policy.words import cast_all, read_jmp
from mpcore.scaling.loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["read_policy"]


def read_policy(native: Any, lost: list[str]) -> Policy:
    """Return the policy that ``native`` stands for; see ``import_policy``.

    Args:
        native: another library's object, text or configuration.
        lost: takes a line for each thing that has no counterpart.
    """
    return _reader(native)(native, lost)


def _reader(native: Any) -> Callable[[Any, list[str]], Policy]:
    if isinstance(native, str):
        return _from_jmp
    if isinstance(native, dict):
        for key, reader in _CONFIGS.items():
            if key in native:
                return reader
        keys = ", ".join(repr(key) for key in list(native)[:10])
        msg = (
            "`native` must be a configuration of apex ('opt_level'), DeepSpeed ('fp16', 'bf16') "
            f"or Accelerate ('mixed_precision'), got a dict with {keys or 'no keys'}"
        )
        raise PolicyError(msg)
    for cls in type(native).__mro__:
        if cls.__name__ in _CLASSES:
            return _CLASSES[cls.__name__]
    msg = (
        f"`native` must be one of {', '.join(_CLASSES)}, a jmp text or a dict, got "
        f"{type(native).__module__}.{type(native).__qualname__}"
    )
    raise PolicyError(msg)


def _from_jmp(text: str, lost: list[str]) -> Policy:
    return Policy.parse(read_jmp(text, lost))


def _cast_all(param: str, compute: str, output: str, lost: list[str]) -> Policy:
    return Policy.parse(cast_all(param, compute, output, lost))


def _from_keras(native: Any, lost: list[str]) -> Policy:
    """Source: ``keras.DTypePolicy`` of Keras 3.15.1."""
    variable, compute = str(native.variable_dtype), str(native.compute_dtype)
    known = PRESETS.get(f"keras:{native.name}")
    if known is not None:
        return known
    if compute == "float32":
        return PRESETS["float32"]
    policy = _cast_all(parse_dtype(variable), parse_dtype(compute), compute, lost)
    return replace(policy, defaults=PRESETS["keras:mixed_float16"].defaults)


def _from_keras_map(native: Mapping[str, Any], lost: list[str]) -> Policy:
    """Source: ``keras.dtype_policies.DTypePolicyMap`` of Keras 3.15.1: paths or their regexes."""
    policy = _from_keras(native.default_policy, lost)  # type: ignore[attr-defined]
    for path, own in native.items():
        pattern = _as_pattern(path)
        if pattern is None:
            lost.append(f"the entry {path!r} (a pattern here has only the wildcards * and ?)")
            continue
        compute = parse_dtype(str(own.compute_dtype))
        if compute not in ("float32", policy.compute) and policy.compute == "float32":
            policy = replace(policy, compute=compute, defaults=(Rule.parse("full layer=*"),))
        policy = policy.with_rules(compute, pattern)
    return policy


def _as_pattern(path: str) -> str | None:
    """Return a Keras path or regex as one of our patterns, if it can be."""
    text = "*".join(piece.replace("/", ".") for piece in path.split(".*"))
    return text if re.fullmatch(r"[\w.*\-]{1,200}", text) else None


def _from_fsdp2(native: Any, lost: list[str]) -> Policy:
    """Source: ``torch.distributed.fsdp.MixedPrecisionPolicy`` of torch 2.13.0."""
    if native.param_dtype is None:
        return PRESETS["float32"]
    compute = parse_dtype(native.param_dtype)
    output = compute if native.output_dtype is None else parse_dtype(native.output_dtype)
    _told_reduce(native.reduce_dtype, lost)
    policy = _cast_all("float32", compute, output, lost)
    defaults = PRESETS["torch:half"].defaults
    return replace(
        policy, defaults=defaults, inputs="cast" if native.cast_forward_inputs else "keep"
    )


def _from_fsdp1(native: Any, lost: list[str]) -> Policy:
    """Source: ``torch.distributed.fsdp.MixedPrecision`` of torch 2.13.0: BatchNorm is kept."""
    if native.param_dtype is None:
        return PRESETS["float32"]
    compute = parse_dtype(native.param_dtype)
    _told_reduce(native.reduce_dtype, lost)
    if native.buffer_dtype is not None and parse_dtype(native.buffer_dtype) != "float32":
        lost.append(f"buffers in {parse_dtype(native.buffer_dtype)} (they stay float32)")
    if native.keep_low_precision_grads:
        lost.append("keep_low_precision_grads (gradients are unscaled in float32)")
    cast = native.cast_root_forward_inputs or native.cast_forward_inputs
    policy = replace(
        _cast_all("float32", compute, compute, lost),
        defaults=PRESETS["torch:half"].defaults,
        inputs="cast" if cast else "keep",
    )
    for cls in native._module_classes_to_ignore:
        name = "*BatchNorm*" if cls.__name__ == "_BatchNorm" else cls.__name__
        policy = policy.full(layer=name)
    return policy


def _told_reduce(dtype: Any, lost: list[str]) -> None:
    if dtype is not None and parse_dtype(dtype) != "float32":
        lost.append(f"reduce_dtype={parse_dtype(dtype)} (gradients are summed in float32)")


def _from_apex(native: dict[str, Any], lost: list[str]) -> Policy:
    """Source: arguments of ``apex.amp.initialize``, NVIDIA/apex e13873debc46."""
    if native.get("enabled") is False:
        return PRESETS["float32"]
    level = check_choice("opt_level", native["opt_level"], ("O0", "O1", "O2", "O3"))
    policy = PRESETS[f"apex:{level}"]
    keep = native.get("keep_batchnorm_fp32")
    if keep is not None and level in ("O2", "O3"):
        wanted = str(keep) == "True"  # apex takes the text too
        defaults = tuple(rule for rule in policy.defaults if rule.pattern != "batch_norm")
        kept = (Rule.parse("full>lower op=batch_norm"),) if wanted else ()
        policy = replace(policy, defaults=defaults + kept)
    if native.get("master_weights") is not None and policy.by == "model":
        policy = replace(policy, master="copy" if native["master_weights"] else "none")
    scale = native.get("loss_scale")
    if scale == "dynamic":
        limits = {
            name: float(native[key])
            for name, key in (("min_scale", "min_loss_scale"), ("max_scale", "max_loss_scale"))
            if native.get(key) is not None
        }
        policy = policy.with_loss_scale(LossScale.named("apex", **limits))
    elif scale is not None:
        fixed = _number("loss_scale", scale)
        policy = policy.with_loss_scale(LossScale.none() if fixed == 1 else LossScale.static(fixed))
    known = {
        "opt_level",
        "enabled",
        "keep_batchnorm_fp32",
        "master_weights",
        "loss_scale",
        "min_loss_scale",
        "max_loss_scale",
        "verbosity",
        "num_losses",
    }
    lost += [f"{key}={native[key]!r}" for key in native if key not in known]
    return policy


def _from_deepspeed(native: dict[str, Any], lost: list[str]) -> Policy:
    """Source: the fp16 and bf16 sections of DeepSpeed's configuration, edaa72212672 (0.19.6)."""
    half, brain = (native.get(key) or {} for key in ("fp16", "bf16"))
    for key, section in (("fp16", half), ("bf16", brain)):
        if not isinstance(section, dict):
            msg = f"`native[{key!r}]` must be a section like {{'enabled': True}}, got {section!r}"
            raise PolicyError(msg)
    if half.get("enabled") and brain.get("enabled"):
        msg = "`native` must enable 'fp16' or 'bf16', got both"
        raise PolicyError(msg)
    if brain.get("enabled"):
        return PRESETS["model_bfloat16"]
    if not half.get("enabled"):
        return PRESETS["float32"]
    if half.get("auto_cast"):
        lost.append("auto_cast=True (inputs are cast by the layers)")
    fixed = _number("fp16.loss_scale", half.get("loss_scale", 0))
    if fixed:
        rule = LossScale.static(fixed)
    else:
        rule = LossScale.named(
            "deepspeed",
            init_scale=2.0
            ** _number("fp16.initial_scale_power", half.get("initial_scale_power", 16)),
            growth_interval=int(
                _number("fp16.loss_scale_window", half.get("loss_scale_window", 1000))
            ),
            hysteresis=int(_number("fp16.hysteresis", half.get("hysteresis", 2))),
            min_scale=_number("fp16.min_loss_scale", half.get("min_loss_scale", 1)),
            hysteresis_reset="growth+good" if half.get("consecutive_hysteresis") else "growth",
        )
    return PRESETS["model_float16"].with_loss_scale(rule)


def _from_accelerate(native: dict[str, Any], lost: list[str]) -> Policy:
    """Source: ``mixed_precision`` of huggingface/accelerate: torch's autocast and GradScaler."""
    word = check_choice(
        "mixed_precision", str(native["mixed_precision"]), ("no", "fp16", "bf16", "fp8")
    )
    if word == "fp8":
        msg = "`mixed_precision` 'fp8' has no counterpart here; choose 'bf16', 'fp16' or 'no'"
        raise PolicyError(msg)
    names = {"no": "float32", "fp16": "autocast_float16", "bf16": "autocast_bfloat16"}
    policy = PRESETS[names[word]]
    return policy.with_loss_scale(LossScale.named("torch")) if word == "fp16" else policy


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as exc:
        msg = f"`{name}` must be a number, got {value!r:.80}"
        raise PolicyError(msg) from exc


_CONFIGS: dict[str, Callable[[Any, list[str]], Policy]] = {
    "opt_level": _from_apex,
    "mixed_precision": _from_accelerate,
    "fp16": _from_deepspeed,
    "bf16": _from_deepspeed,
}
_CLASSES: dict[str, Callable[[Any, list[str]], Policy]] = {
    "DTypePolicyMap": _from_keras_map,
    "DTypePolicy": _from_keras,
    "MixedPrecisionPolicy": _from_fsdp2,
    "MixedPrecision": _from_fsdp1,
}
