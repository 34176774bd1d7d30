"""Matching layers between frameworks, and measuring how far two sets of weights are apart."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore import ExperimentError
from mpcore.checkpoint.layer_weights import (
    LayerWeights,
    flatten,
    match,
    relative_difference,
    unflatten,
)


def layer(path: str, category: str = "linear", shape: tuple[int, ...] = (4, 3)) -> LayerWeights:
    rng = np.random.default_rng(len(path))
    return LayerWeights(path, category, {"weight": rng.normal(size=shape).astype("f4")})


def test_match_takes_values_from_one_and_paths_from_the_other() -> None:
    reference, own = [layer("0"), layer("11")], [layer("fc"), layer("head")]
    matched = match(reference, own)
    assert [w.path for w in matched] == ["fc", "head"]
    assert matched[1].arrays is reference[1].arrays


def test_layers_of_one_shape_are_matched_by_name_where_names_tell() -> None:
    def paths(reference: str, own: str) -> list[str]:
        # What comes in tells by its values which layer of the reference it was.
        values = {
            name: LayerWeights(name, "linear", {"weight": np.full((2, 2), n, "f4")})
            for n, name in enumerate(reference.split())
        }
        there = [LayerWeights(n, "linear", {"weight": np.zeros((2, 2), "f4")}) for n in own.split()]
        matched = match(list(values.values()), there)
        assert [w.path for w in matched] == own.split()
        return [reference.split()[int(w.arrays["weight"][0, 0])] for w in matched]

    assert paths("a.q a.k a.v", "b.k b.q b.v") == ["a.k", "a.q", "a.v"]
    assert paths("a.q b.q", "b.q a.q") == ["b.q", "a.q"]  # the same paths in another order
    assert paths("a.q b.q", "x.q y.q") == ["a.q", "b.q"]  # a word twice tells nothing
    assert paths("q k", "query key") == ["q", "k"]  # other words keep their order


@pytest.mark.parametrize(
    ("own", "message"),
    [
        pytest.param(
            [layer("fc", "conv")], "'0' in one model, 'fc' in the other: linear", id="kind"
        ),
        pytest.param(
            [layer("fc", shape=(3, 4))], r"shapes .*\(4, 3\).* against .*\(3, 4\)", id="shape"
        ),
        pytest.param([layer("fc"), layer("more")], "without a partner is 'more'", id="number"),
    ],
)
def test_difference_names_the_layer(own: list[LayerWeights], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        match([layer("0")], own)


def test_flat_form_round_trips_in_order() -> None:
    layers = [layer(f"l{i}") for i in range(12)]
    back = unflatten(flatten(layers))
    assert [w.path for w in back] == [w.path for w in layers]
    for a, b in zip(layers, back, strict=True):
        np.testing.assert_array_equal(a.arrays["weight"], b.arrays["weight"])


def test_relative_difference_finds_the_worst_tensor() -> None:
    a, b = [layer("x"), layer("yy")], [layer("x"), layer("yy")]
    assert relative_difference(a, b) == 0.0
    b[1].arrays["weight"] = b[1].arrays["weight"] * np.float32(1.01)
    assert relative_difference(a, b) == pytest.approx(0.01, rel=1e-3)


def test_noise_in_a_vanishing_tensor_is_measured_against_the_whole() -> None:
    tiny = LayerWeights("key.bias", "linear", {"bias": np.full(4, 1e-9, "f4")})
    other = LayerWeights("key.bias", "linear", {"bias": np.full(4, -1e-9, "f4")})
    assert relative_difference([layer("x"), tiny], [layer("x"), other]) < 1e-5
    big = LayerWeights("key.bias", "linear", {"bias": np.full(4, 1e-1, "f4")})
    assert relative_difference([layer("x"), tiny], [layer("x"), big]) > 1


def test_scalars_and_many_layers_keep_shape_and_order() -> None:
    layers = [LayerWeights(f"l{i}", "other", {"gain": np.float32(i)}) for i in range(1200)]
    back = unflatten(flatten(layers))
    assert [layer.path for layer in back] == [layer.path for layer in layers]
    assert all(layer.arrays["gain"].shape == () for layer in back)
