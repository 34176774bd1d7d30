"""The right answers that the doctor holds frameworks to: gradients are those of their outputs."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore.capabilities.cases import DTYPES, FAMILIES, make_case, right
from mpcore.numerics.dtypes import round_to


def doubles(family: str) -> dict[str, np.ndarray]:
    case = make_case(family, "float32")
    return {name: a.astype(np.float64) for name, a in {**case.inputs, **case.data}.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_output(family: str) -> None:
    """Along a random direction of each input, by a difference of two outputs."""
    found, given, rng = FAMILIES[family], doubles(family), np.random.default_rng(1)

    def loss(values: dict[str, np.ndarray]) -> float:
        y = found.right(values)["y"]
        return float((y * values["g"]).sum() if "g" in values else y)

    answers = found.right(given)
    inputs = [name for name in given if name not in found.data]
    assert set(answers) == {"y", *(f"d_{name}" for name in inputs)}
    for name in inputs:
        along, step = rng.standard_normal(given[name].shape), 1e-6
        ends = [loss(given | {name: given[name] + sign * step * along}) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope == pytest.approx((answers[f"d_{name}"] * along).sum(), rel=1e-5)


def test_outputs_are_what_their_names_say() -> None:
    v = doubles("norm")
    x = v["x"]
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = {"norm": normal * v["weight"] + v["bias"]}
    v = doubles("softmax")
    expected["softmax"] = np.exp(v["x"]) / np.exp(v["x"]).sum(-1, keepdims=True)
    v = doubles("mlp_step")
    expected["mlp_step"] = ((np.tanh(v["x"] @ v["w1"].T) @ v["w2"].T - v["t"]) ** 2).sum() / 16
    for family, wanted in expected.items():
        case = make_case(family, "float32")
        np.testing.assert_allclose(right(family, case)["y"], wanted, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_larger_case_is_longer_where_its_work_grows(family: str) -> None:
    found, small, large = (
        FAMILIES[family],
        make_case(family, "float32"),
        make_case(family, "float32", 3),
    )
    sizes = {n: a.shape for n, a in {**small.inputs, **small.data}.items()}
    assert sizes == found.shapes
    for name, array in {**large.inputs, **large.data}.items():
        grown = list(sizes[name])
        if name in found.grows:
            grown[found.grows[name]] *= 3
        assert array.shape == tuple(grown)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_fit_their_dtype(dtype: str) -> None:
    for family in FAMILIES:
        case = make_case(family, dtype)
        for array in (*case.inputs.values(), *case.data.values()):
            np.testing.assert_array_equal(round_to(array, dtype), array)
