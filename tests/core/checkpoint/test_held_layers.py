"""What neutral layers hold: read and written by handles of a framework, tied ones once."""

from __future__ import annotations

import numpy as np

from mpcore.checkpoint.held_layers import collect, hold, spread

SHARED = ["embedding"]
LAYERS = [
    ("embed", "embedding", {"table": SHARED}),
    ("dense", "linear", {"kernel": ["kernel"], "bias": ["bias"]}),
    ("head", "linear", {"kernel": SHARED, "bias": ["other"]}),
]
NAMES = {"kernel": "weight", "table": "weight"}


def test_layers_are_held_by_path_category_and_neutral_names() -> None:
    held = hold(LAYERS, NAMES)
    assert [(one.path, one.category, one.handles) for one in held] == [
        ("embed", "embedding", {"weight": ["embedding"]}),
        ("dense", "linear", {"weight": ["kernel"], "bias": ["bias"]}),
        ("head", "linear", {"bias": ["other"]}),
    ]


def test_what_is_read_is_what_is_written_back() -> None:
    held = hold(LAYERS, NAMES)
    store = {"embedding": 1.0, "kernel": 2.0, "bias": 3.0, "other": 4.0}
    weights = collect(held, lambda handle: np.float32([store[handle[0]]]))
    assert [(one.path, one.category) for one in weights] == [
        ("embed", "embedding"),
        ("dense", "linear"),
        ("head", "linear"),
    ]
    written: dict[str, float] = {}
    spread(held, weights, lambda handle, array: written.update({handle[0]: float(array[0])}))
    assert written == store
