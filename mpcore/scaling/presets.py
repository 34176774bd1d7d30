"""The loss scalers of other libraries, as data. Each reproduces its original bit for bit.

Source of every row: the library and version named beside it, read there and run against it;
``tests/golden/loss_scale_traces.json`` holds what the originals did. MXNet was read, not run,
and installs a new scale one check later than this machine does.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["ROWS"]

_FREE = {"min_scale": 0.0, "max_scale": math.inf}
_FLOORED = {"min_scale": 1.0, "max_scale": math.inf}
_DOUBLE = {"state_dtype": "float64", "factor_dtype": "float64", "nonfinite_growth": "allow"}
_HALVES = {"backoff_op": "div", "backoff_factor": 2.0}

ROWS: dict[str, dict[str, Any]] = {
    # torch.amp.GradScaler, torch 2.13.0: the factor stays double, one rounding; reaches 0;
    # each optimizer skips for its own gradients only
    "torch": {**_FREE, "factor_dtype": "float64", "skip_scope": "optimizer"},
    # torch_npu.npu.amp.GradScaler, Ascend/pytorch 9e73e708ab93
    "torch_npu": {**_FREE},
    # torch.distributed.fsdp.ShardedGradScaler with a CPU scale, torch 2.13.0: reaches inf
    "torch_sharded": {**_FREE, "nonfinite_growth": "allow", "skip_scope": "optimizer"},
    # keras.optimizers.LossScaleOptimizer, Keras 3.15.1: reaches 0 and inf
    "keras": {**_FREE, "init_scale": 2.0**15, "nonfinite_growth": "allow"},
    # tf_keras LossScaleOptimizer and V3, tf_keras 2.21.0: its iterations count skipped steps
    "tf_keras": {**_FLOORED, **_HALVES, "init_scale": 2.0**15, "count_skipped_steps": True},
    # tf.mixed_precision.experimental.DynamicLossScale, TensorFlow 2.21.0
    "tf_experimental": {**_FLOORED, **_HALVES, "init_scale": 2.0**15},
    # mindspore.amp.DynamicLossScaler, MindSpore 2.10.0; its init and window have no default
    "mindspore": {**_FLOORED, **_HALVES},
    # the widely used mindspore.amp.DynamicLossScaler(2**10, 2, 50)
    "mindspore_1024": {**_FLOORED, **_HALVES, "init_scale": 2.0**10, "growth_interval": 50},
    # mindspore.amp.DynamicLossScaleManager, MindSpore 2.10.0: on the host, in Python numbers
    "mindspore_manager": {
        **_FLOORED,
        **_DOUBLE,
        "init_scale": 2.0**24,
        "backoff_op": "mul_reciprocal",
        "backoff_factor": 2.0,
        "max_skips": 1000,
    },
    # mindspore.nn.DynamicLossScaleUpdateCell, MindSpore 2.10.0
    "mindspore_update_cell": {
        **_FLOORED,
        "backoff_op": "mul_reciprocal",
        "backoff_factor": 2.0,
        "nonfinite_growth": "allow",
    },
    # apex.amp.LossScaler, NVIDIA/apex e13873debc46, the last with apex.amp
    "apex": {"min_scale": 0.0, "max_scale": 2.0**24, **_HALVES, **_DOUBLE},
    # apex.fp16_utils.DynamicLossScaler, same revision
    "apex_fp16_utils": {
        **_FLOORED,
        **_HALVES,
        **_DOUBLE,
        "init_scale": 2.0**32,
        "growth_interval": 1000,
    },
    # apex update_scale_hysteresis kernel, NVIDIA/apex 6424da3b; read, not run
    "apex_hysteresis": {**_FREE, "hysteresis": 2, "hysteresis_reset": "good"},
    # DeepSpeed's fp16 configuration, deepspeedai/DeepSpeed edaa72212672: one good step more
    # before a growth, and the end of the run at the floor
    "deepspeed": {
        **_FLOORED,
        **_HALVES,
        **_DOUBLE,
        "growth_interval": 1000,
        "growth_warmup": 1,
        "hysteresis": 2,
        "hysteresis_reset": "growth",
        "raises_at_min": True,
    },
    # megatron.core DynamicGradScaler, NVIDIA/Megatron-LM d98e8a64ddf3: reaches inf
    "megatron": {
        **_FLOORED,
        "init_scale": 2.0**32,
        "growth_interval": 1000,
        "nonfinite_growth": "allow",
        "hysteresis": 2,
        "hysteresis_reset": "growth",
    },
    # fairseq DynamicLossScaler, facebookresearch/fairseq 3d262bb25690
    "fairseq": {
        "min_scale": 0.0,
        "max_scale": math.inf,
        **_HALVES,
        **_DOUBLE,
        "init_scale": 2.0**15,
        "overflow_ratio": 0.0,
        "abort_below": 1e-4,
    },
    # jmp.DynamicLossScale, jmp 0.0.4; its init has no default
    "jmp": {**_FLOORED, **_HALVES},
    # flax.training.dynamic_scale.DynamicScale, flax 0.12.8: grows after interval + 1 steps
    "flax": {
        "min_scale": 2.0**-126,
        "max_scale": math.inf,
        "growth_interval": 2001,
        "nonfinite_growth": "clamp",
    },
    # paddle.amp.GradScaler (dygraph), paddlepaddle 3.3.1: reaches 0 and inf
    "paddle": {**_FREE, "nonfinite_growth": "allow", "hysteresis_reset": "good+backoff"},
    # paddle update_loss_scaling op (static graph), paddlepaddle 3.3.1
    "paddle_static": {**_FLOORED, "hysteresis_reset": "good+backoff"},
    # colossalai.amp DynamicGradScaler, hpcaitech/ColossalAI 4f9953be335e
    "colossalai": {
        **_FREE,
        "growth_interval": 1000,
        "nonfinite_growth": "allow",
        "hysteresis": 2,
        "hysteresis_reset": "growth",
    },
    # mxnet.amp LossScaler, apache/mxnet 45ec2e65; read, not run
    "mxnet": {"min_scale": 0.0, "max_scale": 2.0**24, **_HALVES, **_DOUBLE},
    # the widely used recipe: 2**15, times 2 after 2000 good steps, halved at each overflow
    "classic": {**_FLOORED, "init_scale": 2.0**15},
}
