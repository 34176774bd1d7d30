"""Five more architectures, after those of the zoo: what the three frameworks share of them.

``unseen_torch.py``, ``unseen_tensorflow.py`` and ``unseen_mindspore.py`` each hold a dict
``MODELS`` of one ``zoo.Entry`` per name. Half of them serve to tune rules, the others score them
once: ``TUNED`` and ``HELD_OUT``.
"""

from __future__ import annotations

import numpy as np
import zoo

PATCHES, HIDDEN, LATENT, LENGTH = 16, 24, 4, 24

NAMES = ("mixer", "vae", "convgru", "bnunet", "detect")
TUNED = ("mlp", "resnet", "unet", "gru", "gpt", "mixer", "convgru")
HELD_OUT = ("cnn", "separable", "lstm", "encoder", "vae", "bnunet", "detect")


def _signals(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 6, 3, LENGTH), zoo._labels(rng, 6)


def _latent(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 8, zoo.FEATURES), zoo._floats(rng, 8, LATENT)


def _boxes(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 4, 3, 16, 16), zoo._labels(rng, 4), zoo._floats(rng, 4, 4)


zoo.BATCHES.update(
    mixer=zoo._images, vae=_latent, convgru=_signals, bnunet=zoo._masks, detect=_boxes
)
