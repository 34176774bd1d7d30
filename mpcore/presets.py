"""Named policies, as data: our portable ones, and the levels of the frameworks.

A letter such as O1 means another thing in each framework, so levels carry their framework's name.
Their ``defaults`` say which layers a level lowers and protects; ``docs/policies.md`` shows them
side by side.

Source: apex/amp/frontend.py of NVIDIA/apex e13873debc46; mindspore/train/amp.py of MindSpore
2.10.0; paddle/amp/auto_cast.py and amp_lists.py of paddlepaddle 3.3.1; keras/src/dtype_policies
and layers of Keras 3.15.1; torch/amp/autocast_mode.py of torch 2.13.0.
"""

from __future__ import annotations

from dataclasses import replace

from mpcore.loss_scale import LossScale
from mpcore.policy import Policy
from mpcore.rule import Rule

__all__ = ["LEVELS", "PRESETS"]

LEVELS = ("O0", "O1", "O2", "O3", "OD", "auto", "autocast")
"""Names that mean nothing without their framework's."""


def _rules(*texts: str) -> tuple[Rule, ...]:
    return tuple(Rule.parse(text) for text in texts)


# The whole model is cast: what has parameters runs in their dtype, the rest in what comes in.
_CAST_MODEL = (
    "lower layer=*",
    *(
        f"follow layer={category}"
        for category in ("activation", "softmax", "loss", "pooling", "dropout", "reshape")
    ),
    "follow layer=other when params<1",
)
_KERAS = _rules("lower layer=*", "full>lower layer=norm")
_CAST = Policy(param="float16", compute="float16", by="model", loss_scale=LossScale.none())

_PORTABLE = (
    Policy(name="float32"),
    Policy(compute="float16", name="mixed_float16"),
    Policy(compute="bfloat16", name="mixed_bfloat16"),
    Policy(compute="float16", by="op", name="autocast_float16"),
    Policy(compute="bfloat16", by="op", name="autocast_bfloat16"),
    # the same, with one op list for all devices: see mpcore.ops.portable
    Policy(compute="float16", by="op", op_list="portable", name="portable_float16"),
    Policy(compute="bfloat16", by="op", op_list="portable", name="portable_bfloat16"),
    Policy(param="float16", compute="float16", by="model", master="copy", name="model_float16"),
    Policy(param="bfloat16", compute="bfloat16", by="model", master="copy", name="model_bfloat16"),
)

_APEX = (
    Policy(name="apex:O0"),
    # functions are patched by list; torch's autocast is its successor
    Policy(compute="float16", by="op", loss_scale=LossScale.named("apex"), name="apex:O1"),
    replace(
        _CAST,
        master="copy",
        inputs="cast",
        loss_scale=LossScale.named("apex"),
        defaults=_rules(*_CAST_MODEL, "full>lower op=batch_norm"),
        name="apex:O2",
    ),
    replace(
        _CAST,
        inputs="cast",
        defaults=_rules(*_CAST_MODEL),
        name="apex:O3",
    ),
)

_MINDSPORE = (
    Policy(name="mindspore:O0"),
    # each listed cell and primitive is lowered, and its result cast back
    Policy(
        compute="float16",
        loss_scale=LossScale.none(),
        defaults=_rules(
            "full layer=*",
            *(f"lower>full layer={name}" for name in ("linear", "conv", "conv_transpose")),
            *(f"lower>full layer={name}" for name in ("LSTMCell", "GRUCell", "RNNCell")),
            "lower>full op=prelu",
            "lower>full layer=ReLU",
        ),
        name="mindspore:O1",
    ),
    # the network is cast as a whole; two kinds of norm are kept
    Policy(
        compute="float16",
        inputs="cast",
        loss_scale=LossScale.named("mindspore_update_cell", init_scale=2.0**24),
        defaults=_rules("lower layer=*", "full>lower op=batch_norm", "full>lower op=layer_norm"),
        name="mindspore:O2",
    ),
    Policy(
        compute="float16",
        inputs="cast",
        loss_scale=LossScale.none(),
        defaults=_rules("lower layer=*"),
        name="mindspore:O3",
    ),
    Policy(compute="float16", by="op", loss_scale=LossScale.none(), name="mindspore:auto"),
)

_PADDLE = (
    Policy(compute="float16", by="op", loss_scale=LossScale.named("paddle"), name="paddle:O1"),
    replace(
        _CAST,
        master="copy",
        inputs="cast",
        loss_scale=LossScale.named("paddle"),
        defaults=_rules(
            *_CAST_MODEL,
            *(f"full>lower op={name}" for name in ("batch_norm", "layer_norm", "instance_norm")),
        ),
        name="paddle:O2",
    ),
    # the white list is lowered, everything else is float32
    Policy(
        compute="float16",
        loss_scale=LossScale.named("paddle"),
        defaults=_rules(
            "full layer=*",
            *(f"lower layer={name}" for name in ("linear", "conv", "conv_transpose", "attention")),
        ),
        name="paddle:OD",
    ),
)

_KERAS_POLICIES = (
    Policy(
        compute="float16",
        output="float16",
        loss_scale=LossScale.named("keras"),
        defaults=_KERAS,
        name="keras:mixed_float16",
    ),
    Policy(compute="bfloat16", output="bfloat16", defaults=_KERAS, name="keras:mixed_bfloat16"),
    replace(
        _CAST,
        output="float16",
        defaults=_rules("lower layer=*"),
        name="keras:float16",
    ),
)

_TORCH = (
    Policy(compute="float16", by="op", loss_scale=LossScale.named("torch"), name="torch:autocast"),
    Policy(compute="bfloat16", by="op", name="torch:autocast_bfloat16"),
    replace(_CAST, defaults=_rules(*_CAST_MODEL), name="torch:half"),
)

PRESETS: dict[str, Policy] = {
    policy.name: policy
    for policy in (*_PORTABLE, *_APEX, *_MINDSPORE, *_PADDLE, *_KERAS_POLICIES, *_TORCH)
}
