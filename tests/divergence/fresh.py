"""Three more architectures, held out from every rule: what the three frameworks share of them.

A tower that sees two pictures, cross-attention with a hand-written RMSNorm and SwiGLU, and a block
of squeeze and excitation with a regression loss. ``fresh_torch.py`` and its like hold ``MODELS``.
"""

from __future__ import annotations

import newer
import numpy as np
import zoo

NAMES = ("twins", "attend", "squeeze")
QUERIES, TARGETS = 3, 3
HELD_OUT = (*newer.HELD_OUT, *NAMES)


def _couples(rng: np.random.Generator) -> zoo.Batch:
    alike = rng.integers(0, 2, (5, 1)).astype(np.float32)
    return zoo._floats(rng, 5, 3, 16, 16), zoo._floats(rng, 5, 3, 16, 16), alike


def _measured(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 6, 3, 17, 17), zoo._floats(rng, 6, TARGETS)


zoo.BATCHES.update(twins=_couples, attend=zoo._sentences, squeeze=_measured)
