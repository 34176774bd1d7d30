"""Names that Keras makes up are the same in every build of a model, so that rules match."""

from __future__ import annotations

import keras
import pytest
from keras import layers

import mpcore as mp

pytestmark = pytest.mark.backend("tensorflow")


def model() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(4, 3),
            layers.ReLU(),
            keras.Sequential([layers.Conv2D(4, 3), layers.ReLU()]),
            layers.Flatten(),
            layers.Dense(4, name="own"),
            layers.Dense(4),
        ]
    )


def paths() -> list[str]:
    return [entry.path for entry in mp.explain(model(), "float32").layers]


def test_a_second_build_has_the_names_of_the_first() -> None:
    first = paths()
    layers.Dense(2)  # counts on
    assert paths() == first
    assert "conv2d" in first
    assert [path for path in first if path.endswith("conv2d_1")]
    assert "own" in first


def test_a_rule_matches_in_every_build() -> None:
    policy = mp.Policy.named("mixed_bfloat16").full("conv2d")
    for _ in range(2):
        plan = mp.explain(model(), policy)
        assert plan["conv2d"].compute == "float32"
        assert plan["dense"].compute == "bfloat16"
