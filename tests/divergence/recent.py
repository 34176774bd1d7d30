"""Three more architectures and 15 mistakes in them, written before any rule was looked at.

Dilated gated convolutions (WaveNet), a few latents that look at a longer input (Perceiver), and
inverted residuals with squeeze and excitation, trained on mixed targets.
"""

from __future__ import annotations

import novel
import numpy as np
import zoo
from novel import LOSS, UNCLEAR, UPDATE

NAMES = ("wave", "perceiver", "inverted")
HELD_OUT = (*novel.HELD_OUT, *NAMES)
STEPS, LATENTS = 12, 4

FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # name: models, places, kinds
    "gate and filter swapped": (("wave",), ("block1", "block1.tanh"), ("layout", *UNCLEAR)),
    "last skip alone": (("wave",), ("", "relu"), UNCLEAR),
    "future seen": (("wave",), ("block2", "block2.filter"), ("padding", *UNCLEAR)),
    "residual scaled": (("wave",), ("block1",), UNCLEAR),
    "labels smoothed": (("wave",), LOSS, ("loss reduction", "label", *UNCLEAR)),
    "one head": (("perceiver",), ("look", "look.share"), ("layout", *UNCLEAR)),
    "scaled by all heads": (("perceiver",), ("look", "look.share"), UNCLEAR),
    "latents not added": (("perceiver",), ("", "norm2"), UNCLEAR),
    "first latent alone": (("perceiver",), ("", "head"), UNCLEAR),
    "keys without norm": (("perceiver",), ("look", "look.key"), UNCLEAR),
    "largest squeezed": (("inverted",), ("excite", "excite.fc1"), UNCLEAR),
    "smooth gate": (("inverted",), ("excite.gate",), ("activation variant", *UNCLEAR)),
    "residual before the norm": (("inverted",), ("", "norm3"), UNCLEAR),
    "mixed the other way": (("inverted",), LOSS, ("label", "loss reduction", *UNCLEAR)),
    "signs of gradients": (NAMES, UPDATE, ("clipping", "optimizer constants", *UNCLEAR)),
}

_mistakes = novel.Mistakes(FAULTS)
wrong, planting = _mistakes.wrong, _mistakes.planting


def _sounds(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 4, 3, STEPS), zoo._labels(rng, 4, STEPS)


def _points(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 6, 10, zoo.FEATURES), zoo._labels(rng, 6)


def _mixed(rng: np.random.Generator) -> zoo.Batch:
    share = rng.uniform(0.1, 0.4, 4).astype(np.float32)
    return zoo._floats(rng, 4, 3, 8, 8), zoo._labels(rng, 4), zoo._labels(rng, 4), share


zoo.BATCHES.update(wave=_sounds, perceiver=_points, inverted=_mixed)
