"""Four more architectures and 23 mistakes in them, held out from every rule.

A language model with rotary positions, two views that learn from each other with a stopped
gradient, causal convolutions with a masked loss, and pictures steered by a second input. The
mistakes are written into the models: ``planting(name)`` says which one is made now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import fresh
import numpy as np
import zoo

NAMES = ("rotary", "views", "causal", "steered")
HELD_OUT = (*fresh.HELD_OUT, *NAMES)
STEPS, STEERS, COLOURS = 12, 6, 2

UNCLEAR = ("other setting", "unknown")
LOSS, UPDATE = ("(loss)",), ("(optimizer)",)
SCORES = ("attend", "attend.share")

FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # name: models, places, kinds
    "softmax over queries": (("rotary",), SCORES, ("layout", *UNCLEAR)),
    "query and key swapped": (("rotary",), SCORES, ("layout", *UNCLEAR)),
    "rotary pairs side by side": (("rotary",), SCORES, ("layout", *UNCLEAR)),
    "rotary base of 100": (("rotary",), SCORES, UNCLEAR),
    "mask one step late": (("rotary",), SCORES, UNCLEAR),
    "residual behind the norm": (("rotary",), ("", "norm2", "(model)"), UNCLEAR),
    "last token without loss": (("rotary",), LOSS, ("loss reduction", "label", *UNCLEAR)),
    "target not detached": (("views",), ("(loss)", "back", "project"), UNCLEAR),
    "one of two losses": (("views",), LOSS, ("loss reduction", *UNCLEAR)),
    "views not normalised": (("views",), LOSS, ("loss reduction", *UNCLEAR)),
    "both views in one batch": (("views",), ("", "enter", "norm"), ("data order", *UNCLEAR)),
    "norm with running statistics": (("views",), ("norm",), ("momentum", *UNCLEAR)),
    "padding off by one": (("causal",), ("", "conv2"), ("padding", *UNCLEAR)),
    "dilation forgotten": (("causal",), ("", "conv2"), ("padding", *UNCLEAR)),
    "mean over padding too": (("causal",), LOSS, ("loss reduction", *UNCLEAR)),
    "loss summed in bfloat16": (
        ("causal", "steered"),
        LOSS,
        ("reduction dtype", "missing cast", "dtype rule", *UNCLEAR),
    ),
    "scale without one": (("steered",), ("", "relu"), UNCLEAR),
    "scale and shift swapped": (("steered",), ("", "relu"), UNCLEAR),
    "kernel turned": (("steered",), ("head",), ("initialisation", "layout")),
    "picture one pixel aside": (("steered",), ("", "silu"), ("layout", "padding", *UNCLEAR)),
    "sum over colours": (("steered",), LOSS, ("loss reduction", *UNCLEAR)),
    "gradients centred": (NAMES, UPDATE, ("clipping", "optimizer constants", *UNCLEAR)),
    "rate by norms": (NAMES, UPDATE, ("clipping", "optimizer constants", *UNCLEAR)),
}


class Mistakes:
    """Which of some faults is made now."""

    def __init__(self, faults: Collection[str]) -> None:
        self._faults, self._now = faults, ""

    def wrong(self, name: str) -> bool:
        assert name in self._faults, name
        return name == self._now

    @contextmanager
    def planting(self, name: str) -> Iterator[None]:
        self._now = name
        try:
            yield
        finally:
            self._now = ""


_mistakes = Mistakes(FAULTS)
wrong, planting = _mistakes.wrong, _mistakes.planting


def turns(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines of rotary positions, one row a step."""
    base = 100.0 if wrong("rotary base of 100") else 10000.0
    angles = np.outer(np.arange(length), base ** (-np.arange(0, zoo.WIDTH, 2) / zoo.WIDTH))
    twice = np.repeat(angles, 2, 1) if wrong("rotary pairs side by side") else np.tile(angles, 2)
    return np.cos(twice).astype(np.float32), np.sin(twice).astype(np.float32)


def allowed(length: int) -> np.ndarray:
    """Return 0 where a query may look, else a large negative number."""
    seen = np.tri(length, k=int(wrong("mask one step late")), dtype=np.float32)
    return (seen - 1) * 1e4


def _views(rng: np.random.Generator) -> zoo.Batch:
    x = zoo._floats(rng, 8, zoo.FEATURES)
    return x, x + 0.3 * zoo._floats(rng, 8, zoo.FEATURES)


def _signals(rng: np.random.Generator) -> zoo.Batch:
    lengths = rng.integers(STEPS // 2, STEPS + 1, (4, 1))
    valid = (np.arange(STEPS) < lengths).astype(np.float32)
    return zoo._floats(rng, 4, 3, STEPS), zoo._floats(rng, 4, STEPS), valid


def _steered(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 4, 3, 8, 8), zoo._floats(rng, 4, STEERS), _target(rng)


def _target(rng: np.random.Generator) -> np.ndarray:
    return zoo._floats(rng, 4, COLOURS, 16, 16)


def _series(rng: np.random.Generator) -> zoo.Batch:
    return zoo._floats(rng, 6, 8, zoo.FEATURES), zoo._labels(rng, 6)


zoo.BATCHES.update(inside=_series, inside_time=_series)  # activations that a layer runs inside
zoo.BATCHES.update(rotary=zoo._text, views=_views, causal=_signals, steered=_steered)
