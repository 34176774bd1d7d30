"""The small GPT of examples/char_transformer, trained as such models are trained.

    mpcore compare examples/experiments/transformer_adamw.py

AdamW with weight decay, a warm-up and a cosine, clipped gradients, smoothed labels.
"""

import math
import runpy
from pathlib import Path

from mpcore import OptimizerSpec

_BASE = runpy.run_path(str(Path(__file__).parents[1] / "char_transformer" / "experiment.py"))

optimizer = OptimizerSpec("adamw", learning_rate=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
steps, batch = 30, 16
clip_norm, label_smoothing = 1.0, 0.1
data = _BASE["data"]
build_torch, build_tensorflow = _BASE["build_torch"], _BASE["build_tensorflow"]
build_mindspore = _BASE["build_mindspore"]


def schedule(step: int) -> float:
    if step < 5:
        return 3e-3 * (step + 1) / 5
    return 3e-3 * 0.5 * (1 + math.cos(math.pi * (step - 5) / (steps - 5)))
