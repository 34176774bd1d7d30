"""Five newer architectures, held out from every rule: what the three frameworks share of them.

A soft mixture of experts, graph convolutions, a recurrence with a learned decay, a U-Net with
attention gates and convolutions over volumes. ``newer_torch.py`` and its like hold ``MODELS``.
"""

from __future__ import annotations

import numpy as np
import unseen
import zoo

NAMES = ("experts", "graph", "timemix", "attunet", "volume")
EXPERTS, NODES = 3, 6
HELD_OUT = (*unseen.HELD_OUT, *NAMES)


def _nodes(rng: np.random.Generator) -> zoo.Batch:
    edges = rng.random((4, NODES, NODES)) < 0.4
    linked = (edges | edges.transpose(0, 2, 1) | np.eye(NODES, dtype=bool)).astype(np.float32)
    spread = 1 / np.sqrt(linked.sum(-1))
    near = linked * spread[:, :, None] * spread[:, None]
    features = rng.normal(size=(4, NODES, zoo.FEATURES)).astype(np.float32)
    return features, near.astype(np.float32), rng.integers(0, zoo.CLASSES, 4).astype(np.int32)


def _volumes(rng: np.random.Generator) -> zoo.Batch:
    pixels = rng.normal(size=(3, 2, 6, 8, 8)).astype(np.float32)
    return pixels, rng.integers(0, zoo.CLASSES, 3).astype(np.int32)


zoo.BATCHES.update(
    experts=zoo._features,
    graph=_nodes,
    timemix=zoo._sentences,
    attunet=zoo._masks,
    volume=_volumes,
)
