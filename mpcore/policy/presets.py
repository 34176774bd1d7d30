"""Named policies, as data: our portable ones, and the levels of the frameworks.

A letter such as O1 means another thing in each framework, so levels carry their framework's name.
Their ``defaults`` say which layers a level lowers and protects; ``docs/policies.md`` shows them
side by side.

Source: apex/amp/frontend.py of NVIDIA/apex e13873debc46; mindspore/train/amp.py of MindSpore
2.10.0; paddle/amp/auto_cast.py and amp_lists.py of paddlepaddle 3.3.1; keras/src/dtype_policies
and layers of Keras 3.15.1; torch/amp/autocast_mode.py of torch 2.13.0.
"""

from __future__ import annotations

from typing import Any

__all__ = ["LEVELS", "ROWS"]

LEVELS = ("O0", "O1", "O2", "O3", "OD", "auto", "autocast")
"""Names that mean nothing without their framework's."""


# The whole model is cast: what has parameters runs in their dtype, the rest in what comes in.
_CAST_MODEL = (
    "lower layer=*",
    *(
        f"follow layer={category}"
        for category in ("activation", "softmax", "loss", "pooling", "dropout", "reshape")
    ),
    "follow layer=other when params<1",
)
_KERAS = ("lower layer=*", "full>lower layer=norm")
_CAST: dict[str, Any] = {
    "param": "float16",
    "compute": "float16",
    "by": "model",
    "loss_scale": "none",
}

ROWS: dict[str, dict[str, Any]] = {
    "float32": {},
    "mixed_float16": {"compute": "float16"},
    "mixed_bfloat16": {"compute": "bfloat16"},
    "autocast_float16": {"compute": "float16", "by": "op"},
    "autocast_bfloat16": {"compute": "bfloat16", "by": "op"},
    # the same, with one op list for all devices: see mpcore.numerics.ops.portable
    "portable_float16": {"compute": "float16", "by": "op", "op_list": "portable"},
    "portable_bfloat16": {"compute": "bfloat16", "by": "op", "op_list": "portable"},
    "model_float16": {"param": "float16", "compute": "float16", "by": "model", "master": "copy"},
    "model_bfloat16": {"param": "bfloat16", "compute": "bfloat16", "by": "model", "master": "copy"},
    "apex:O0": {},
    # functions are patched by list; torch's autocast is its successor
    "apex:O1": {"compute": "float16", "by": "op", "loss_scale": "apex"},
    "apex:O2": {
        **_CAST,
        "master": "copy",
        "inputs": "cast",
        "loss_scale": "apex",
        "defaults": (*_CAST_MODEL, "full>lower op=batch_norm"),
    },
    "apex:O3": {**_CAST, "inputs": "cast", "defaults": _CAST_MODEL},
    "mindspore:O0": {},
    # each listed cell and primitive is lowered, and its result cast back
    "mindspore:O1": {
        "compute": "float16",
        "loss_scale": "none",
        "defaults": (
            "full layer=*",
            *(f"lower>full layer={name}" for name in ("linear", "conv", "conv_transpose")),
            *(f"lower>full layer={name}" for name in ("LSTMCell", "GRUCell", "RNNCell")),
            "lower>full op=prelu",
            "lower>full layer=ReLU",
        ),
    },
    # the network is cast as a whole; two kinds of norm are kept
    "mindspore:O2": {
        "compute": "float16",
        "inputs": "cast",
        "loss_scale": "mindspore_update_cell(init_scale=16777216.0)",
        "defaults": ("lower layer=*", "full>lower op=batch_norm", "full>lower op=layer_norm"),
    },
    "mindspore:O3": {
        "compute": "float16",
        "inputs": "cast",
        "loss_scale": "none",
        "defaults": ("lower layer=*",),
    },
    "mindspore:auto": {"compute": "float16", "by": "op", "loss_scale": "none"},
    "paddle:O1": {"compute": "float16", "by": "op", "loss_scale": "paddle"},
    "paddle:O2": {
        **_CAST,
        "master": "copy",
        "inputs": "cast",
        "loss_scale": "paddle",
        "defaults": (
            *_CAST_MODEL,
            *(f"full>lower op={name}" for name in ("batch_norm", "layer_norm", "instance_norm")),
        ),
    },
    # the white list is lowered, everything else is float32
    "paddle:OD": {
        "compute": "float16",
        "loss_scale": "paddle",
        "defaults": (
            "full layer=*",
            *(f"lower layer={name}" for name in ("linear", "conv", "conv_transpose", "attention")),
        ),
    },
    "keras:mixed_float16": {
        "compute": "float16",
        "output": "float16",
        "loss_scale": "keras",
        "defaults": _KERAS,
    },
    "keras:mixed_bfloat16": {"compute": "bfloat16", "output": "bfloat16", "defaults": _KERAS},
    "keras:float16": {**_CAST, "output": "float16", "defaults": ("lower layer=*",)},
    "torch:autocast": {"compute": "float16", "by": "op", "loss_scale": "torch"},
    "torch:autocast_bfloat16": {"compute": "bfloat16", "by": "op"},
    "torch:half": {**_CAST, "defaults": _CAST_MODEL},
}
"""Fields of each policy by its name; rules and loss scales are texts."""
