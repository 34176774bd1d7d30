"""The machine against what 21 original loss scalers did, step by step, bit for bit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mpcore import LossScale, LossScaleError
from mpcore.scaling.transition import advance, initial_state

TRACES = json.loads(
    (Path(__file__).parents[2] / "golden" / "loss_scale_traces.json").read_text(encoding="utf-8")
)
# Another algorithm (an average of log2 of the gradient), and TensorFlow flushing subnormals.
NOT_OURS = {"openseq2seq.LogMaxScaler"}
FLUSHES = "dynamic_growth_steps=3_initial_scale=7.174648137343064e-43/backoff_to_zero"

_TORCH = {
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
    "growth_interval": "growth_interval",
    "min_scale": "min_scale",
    "max_scale": "max_scale",
    "hysteresis": "hysteresis",
}
_KERAS = {"dynamic_growth_steps": "growth_interval"}
_WINDOW = {"scale_window": "growth_interval"}
_PADDLE = {
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    "decr_every_n_nan_or_inf": "hysteresis",
    "incr_every_n_steps": "growth_interval",
}
# implementation: (preset, its field names to ours, the field that is both factors)
PRESET_OF: dict[str, tuple[str, dict[str, str], str]] = {
    "torch.amp.GradScaler": ("torch", _TORCH, ""),
    "torch_npu.npu.amp.GradScaler": ("torch_npu", _TORCH, ""),
    "torch.fsdp.ShardedGradScaler(cpu)": ("torch_sharded", _TORCH, ""),
    "keras.LossScaleOptimizer": ("keras", _KERAS, ""),
    "keras.LossScaleOptimizer(stateless_apply,jax)": ("keras", _KERAS, ""),
    "tf_keras.mixed_precision.LossScaleOptimizer": ("tf_keras", _KERAS, ""),
    "tf_keras.mixed_precision.LossScaleOptimizerV3": ("tf_keras", _KERAS, ""),
    "tf.mixed_precision.experimental.DynamicLossScale": (
        "tf_experimental",
        {"increment_period": "growth_interval"},
        "multiplier",
    ),
    "mindspore.amp.DynamicLossScaler": ("mindspore", _WINDOW, "scale_factor"),
    "mindspore.amp.DynamicLossScaleManager": ("mindspore_manager", _WINDOW, "scale_factor"),
    "mindspore.nn.DynamicLossScaleUpdateCell": ("mindspore_update_cell", _WINDOW, "scale_factor"),
    "apex.amp.LossScaler": (
        "apex",  # it takes a scale_factor and ignores it
        _WINDOW | {"min_loss_scale": "min_scale", "max_loss_scale": "max_scale"},
        "",
    ),
    "apex.fp16_utils.DynamicLossScaler": ("apex_fp16_utils", _WINDOW, "scale_factor"),
    "deepspeed.DynamicLossScaler": (
        "deepspeed",
        _WINDOW
        | {
            "min_scale": "min_scale",
            "delayed_shift": "hysteresis",
            "raise_error_at_min_scale": "raises_at_min",
        },
        "scale_factor",
    ),
    "megatron.DynamicGradScaler": ("megatron", _TORCH, ""),
    "colossalai.DynamicGradScaler": ("colossalai", _TORCH, ""),
    "fairseq.DynamicLossScaler": (
        "fairseq",
        _WINDOW
        | {
            "tolerance": "overflow_ratio",
            "threshold": "min_scale",
            "min_loss_scale": "abort_below",
        },
        "scale_factor",
    ),
    "jmp.DynamicLossScale": (
        "jmp",
        {"period": "growth_interval", "min_loss_scale": "min_scale"},
        "factor",
    ),
    "flax.training.DynamicScale": ("flax", _TORCH | {"minimum_scale": "min_scale"}, ""),
    "paddle.amp.GradScaler": ("paddle", _PADDLE, ""),
    "paddle.update_loss_scaling_(op)": ("paddle_static", _PADDLE, ""),
}

# Fields that `rule_of` reads under any name, and apex's, which apex itself ignores.
_READ = {"init_scale", "initial_scale", "initial_loss_scale", "init_loss_scale", "loss_scale_value"}
_READ |= {"init_loss_scaling", "loss_scale", "scale", "scale_value", "consecutive_hysteresis"}
_IGNORED = {"apex.amp.LossScaler": {"scale_factor"}}


def rule_of(trace: dict[str, Any]) -> LossScale:
    preset, names, factor = PRESET_OF[trace["implementation"]]
    config = trace["config"]
    none = {"min_scale": 0.0, "max_scale": math.inf}
    changes = {
        ours: none[ours] if config[theirs] is None else config[theirs]
        for theirs, ours in names.items()
        if theirs in config
    }
    if factor in config:
        changes["growth_factor"] = changes["backoff_factor"] = float(config[factor])
    if preset == "deepspeed":
        changes["hysteresis_reset"] = "good" if config.get("consecutive_hysteresis") else "growth"
    if preset == "flax":
        changes["growth_interval"] += 1
    return LossScale.named(preset, init_scale=float(trace["scale_initial"]), **changes)


@pytest.mark.parametrize("implementation", sorted(PRESET_OF))
def test_every_trace_is_reproduced(implementation: str) -> None:
    traces = [t for t in TRACES if t["implementation"] == implementation]
    assert len(traces) >= 9
    for trace in traces:
        if trace["id"].endswith(FLUSHES):
            continue
        rule = rule_of(trace)
        state, scales, raised = initial_state(rule), [], []
        for step, bad in enumerate(trace["found_inf"]):
            try:
                state = advance(rule, state, not bad)
            except LossScaleError:
                raised.append(step)
                scales.append(trace["scale_after"][step])
                break
            scales.append(state.scale)
        assert scales == [float(scale) for scale in trace["scale_after"]], trace["id"]
        assert raised == [error["step"] for error in trace["errors"]], trace["id"]


def test_no_implementation_is_left_out() -> None:
    assert {t["implementation"] for t in TRACES} - NOT_OURS == set(PRESET_OF)
    flushed = [t for t in TRACES if t["id"].endswith(FLUSHES)]
    assert [t["implementation"] for t in flushed] == ["keras.LossScaleOptimizer"]
    assert set(flushed[0]["scale_after"]) == {0.0}


@pytest.mark.parametrize("implementation", sorted(PRESET_OF))
def test_every_field_of_an_original_reaches_our_rule(implementation: str) -> None:
    _, names, factor = PRESET_OF[implementation]
    fields = {name for t in TRACES if t["implementation"] == implementation for name in t["config"]}
    assert fields <= {*names, factor} | _READ | _IGNORED.get(implementation, set())


def test_the_machine_can_tell_the_originals_apart() -> None:
    """One wrong knob is seen: every preset run on another's traces fails somewhere."""
    trace = next(t for t in TRACES if t["implementation"] == "deepspeed.DynamicLossScaler")
    rule = rule_of(trace)
    wrong = LossScale.named("apex_fp16_utils", init_scale=rule.init_scale, growth_interval=3)
    states = [initial_state(rule), initial_state(wrong)]
    for _ in range(10):
        states = [advance(r, s, True) for r, s in zip((rule, wrong), states, strict=True)]
        if states[0].scale != states[1].scale:
            return
    pytest.fail("a machine with another warm-up gave the same trajectory")
