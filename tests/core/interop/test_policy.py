"""Policies of other libraries, by stand-ins with their attributes; the real ones are met in the
backends' own tests."""

from __future__ import annotations

import warnings
from collections import UserDict

import pytest

from mpcore import LossScale, MpcoreWarning, Policy, PolicyError
from mpcore.interop.policy import export_policy, import_policy
from mpcore.interop.policy_write import WRITERS
from mpcore.policy.policy import PRESETS


class _BatchNorm:
    pass


class DTypePolicy:
    def __init__(self, name, compute, variable):
        self.name, self.compute_dtype, self.variable_dtype = name, compute, variable


class DTypePolicyMap(UserDict):
    def __init__(self, default, entries):
        super().__init__(entries)
        self.default_policy = default


class MixedPrecisionPolicy:
    def __init__(self, param=None, reduce=None, output=None, cast=True):
        self.param_dtype, self.reduce_dtype, self.output_dtype = param, reduce, output
        self.cast_forward_inputs = cast


class MixedPrecision:
    keep_low_precision_grads = False
    cast_forward_inputs = False
    cast_root_forward_inputs = True
    _module_classes_to_ignore = (_BatchNorm,)

    def __init__(self, param=None, reduce=None, buffer=None):
        self.param_dtype, self.reduce_dtype, self.buffer_dtype = param, reduce, buffer


MIXED = DTypePolicy("mixed_float16", "float16", "float32")


@pytest.mark.parametrize(
    ("native", "name"),
    [
        ({"mixed_precision": "no"}, "float32"),
        ({"mixed_precision": "bf16"}, "autocast_bfloat16"),
        ({"opt_level": "O1"}, "apex:O1"),
        ({"opt_level": "O2"}, "apex:O2"),
        ({"opt_level": "O2", "enabled": False}, "float32"),
        ({"bf16": {"enabled": True}}, "model_bfloat16"),
        ({"fp16": {"enabled": False}}, "float32"),
        ("params=float32,compute=float32,output=float32", "float32"),
        (MIXED, "keras:mixed_float16"),
        (DTypePolicy("mixed_bfloat16", "bfloat16", "float32"), "keras:mixed_bfloat16"),
        (DTypePolicy("float16", "float16", "float16"), "keras:float16"),
        (DTypePolicy("float32", "float32", "float32"), "float32"),
        (MixedPrecisionPolicy(), "float32"),
    ],
)
def test_known_configurations_are_named_policies(native, name: str) -> None:
    assert import_policy(native) == PRESETS[name]


def test_deepspeed_brings_its_loss_scale() -> None:
    config = {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 50, "hysteresis": 3}
    policy = import_policy({"fp16": config})
    rule = LossScale.named("deepspeed", init_scale=4096.0, growth_interval=50, hysteresis=3)
    assert policy == PRESETS["model_float16"].with_loss_scale(rule)
    back = export_policy(policy, "deepspeed")
    assert back.lost == ()
    assert back.value["fp16"] | config == back.value["fp16"]
    assert import_policy(back.value) == policy


def test_apex_arguments_change_the_level() -> None:
    policy = import_policy({"opt_level": "O3", "keep_batchnorm_fp32": "True", "loss_scale": 128.0})
    assert str(policy.defaults[-1]) == "full>lower op=batch_norm"
    assert str(policy.scaling) == "static(init_scale=128.0)"
    dynamic = import_policy(
        {
            "opt_level": "O2",
            "loss_scale": "dynamic",
            "min_loss_scale": 1.0,
            "max_loss_scale": 2.0**20,
        }
    )
    assert (dynamic.scaling.min_scale, dynamic.scaling.max_scale) == (1.0, 2.0**20)


@pytest.mark.parametrize("text", ["p=f32,c=f16,o=f32", "params=float32,compute=float16"])
def test_jmp_casts_everything(text: str) -> None:
    policy = import_policy(text)
    assert (policy.param, policy.compute, policy.output) == ("float32", "float16", "float32")
    assert [str(rule) for rule in policy.defaults] == ["lower layer=*"]
    back = export_policy(policy, "jmp")
    assert (back.value, back.lost) == ("params=float32,compute=float16,output=float32", ())


def test_keras_map_becomes_rules() -> None:
    full = DTypePolicy("float32", "float32", "float32")
    policy = import_policy(DTypePolicyMap(MIXED, {"encoder/head": full, "encoder/.*": MIXED}))
    assert [str(rule) for rule in policy.rules] == [
        "float32 path=encoder.head",
        "float16 path=encoder.*",
    ]


def test_fsdp_lowers_every_module_but_what_it_ignores() -> None:
    policy = import_policy(MixedPrecision("bfloat16"))
    assert str(policy.rules[0]) == "full layer=*BatchNorm*"
    assert policy.inputs == "cast"
    second = import_policy(MixedPrecisionPolicy("bfloat16", output="float32", cast=False))
    assert (second.rules, second.inputs, second.output) == ((), "keep", "float32")
    assert export_policy(second, "torch_fsdp").lost == ()


def test_what_is_lost_is_told() -> None:
    with pytest.warns(MpcoreWarning, match="reduce_dtype=bfloat16"):
        import_policy(MixedPrecisionPolicy("bfloat16", "bfloat16"))
    with pytest.warns(MpcoreWarning, match=r"the entry 'a\|b'"):
        import_policy(DTypePolicyMap(MIXED, {"a|b": MIXED}))
    with pytest.warns(MpcoreWarning, match="cast_model_outputs"):
        import_policy({"opt_level": "O2", "cast_model_outputs": 1})


@pytest.mark.parametrize(
    ("native", "message"),
    [
        ({}, "got a dict with no keys"),
        ({"half": 1}, "got a dict with 'half'"),
        ({"opt_level": "O4"}, "`opt_level` must be one of"),
        ({"mixed_precision": "fp8"}, "has no counterpart"),
        ({"mixed_precision": "fp61"}, "did you mean 'fp16'"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "got both"),
        ({"fp16": 3}, "must be a section"),
        ({"fp16": {"enabled": True, "hysteresis": "many"}}, "`fp16.hysteresis` must be a number"),
        ({"opt_level": "O2", "loss_scale": "fast"}, "`loss_scale` must be a number"),
        ("params:float32", "`params` must be one of"),
        ("param=float32", "must look like 'params="),
        ("params=float8", "`params` must be one of"),
        (object(), "must be one of DTypePolicyMap"),
    ],
)
def test_what_is_none_of_them_is_refused(native, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        import_policy(native)


@pytest.mark.parametrize("target", WRITERS)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_policy_can_be_written_or_says_what_is_lost(name: str, target: str) -> None:
    native = export_policy(PRESETS[name], target)
    assert native.value
    assert all(line for line in native.lost)
    if PRESETS[name] == PRESETS["float32"]:
        assert native.lost == ()


def test_rules_are_lost_by_name() -> None:
    native = export_policy(Policy.named("autocast_float16").full("*.head"), "accelerate")
    assert native.value == {"mixed_precision": "fp16"}
    assert native.lost == ("rule full path=*.head",)


@pytest.mark.parametrize(
    ("name", "target", "value"),
    [
        ("keras:mixed_float16", "keras", "mixed_float16"),
        ("mindspore:O2", "mindspore", {"amp_level": "O2", "dtype": "float16"}),
        ("mindspore:auto", "mindspore", {"amp_level": "auto", "dtype": "float16"}),
        (
            "apex:O2",
            "apex",
            {"opt_level": "O2", "keep_batchnorm_fp32": True, "loss_scale": "dynamic"},
        ),
        ("float32", "accelerate", {"mixed_precision": "no"}),
        (
            "float32",
            "torch",
            {"autocast": {"dtype": "float32", "enabled": False}, "scaler": {"enabled": False}},
        ),
        (
            "autocast_float16",
            "torch",
            {
                "autocast": {"dtype": "float16", "enabled": True},
                "scaler": {
                    "init_scale": 65536.0,
                    "growth_factor": 2.0,
                    "backoff_factor": 0.5,
                    "growth_interval": 2000,
                },
            },
        ),
        ("apex:O3", "apex", {"opt_level": "O3", "keep_batchnorm_fp32": False, "loss_scale": 1.0}),
    ],
)
def test_levels_are_written_as_their_own(name: str, target: str, value) -> None:
    native = export_policy(PRESETS[name], target)
    assert native.value == value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if target == "apex":
            assert import_policy(native.value) == PRESETS[name]


def test_unknown_target_is_refused() -> None:
    with pytest.raises(PolicyError, match="did you mean 'keras'"):
        export_policy(Policy.named("float32"), "kera")
