"""Verdicts: noise is not called a difference, a difference is not called noise."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore.compare.verdict import band, free_difference, is_kink, lockstep_step, verdict
from mpcore.compare.weights import LayerWeights

EQUAL = {"max_rel_loss_diff": 1e-7, "max_rel_grad_diff": 1e-6, "max_rel_update_diff": 1e-8}


def test_band_is_a_margin_over_the_largest_so_far() -> None:
    assert band([1.0, 1.0, 1.0], [[1.0, 1.01, 1.0], [1.0, 0.98, 1.0]]) == pytest.approx(
        [1e-6, 0.06, 0.06]
    )
    assert band([1.0], []) == []


def test_free_difference_is_relative_and_sees_what_is_not_finite() -> None:
    assert free_difference([1.0, 2.0], [1.0, 1.0]) == [0.0, 1.0]
    assert free_difference(["inf", "nan"], ["inf", 1.0]) == [0.0, np.inf]


@pytest.mark.parametrize(
    ("compute", "lockstep", "differences", "noise", "text"),
    [
        pytest.param("float32", EQUAL, [1e-7, 0.01], [1e-6, 0.02], "same", id="inside"),
        pytest.param(
            "float32",
            EQUAL,
            [1e-7, 0.05],
            [1e-6, 0.02],
            "different: beyond noise by 2.5x",
            id="out",
        ),
        pytest.param(
            "float32",
            EQUAL | {"max_rel_grad_diff": 1e-2},
            [0.0],
            [1e-6],
            "different: one step's grad by 1.0e-02 (limit 1e-04)",
            id="one-step",
        ),
        pytest.param(
            "float32",
            EQUAL | {"max_rel_loss_diff": float("nan")},
            [0.0],
            [1e-6],
            "different: one step's loss by nan",
            id="nan",
        ),
        pytest.param(
            "bfloat16", EQUAL | {"max_rel_grad_diff": 1e-2}, [0.01], [0.02], "same", id="low"
        ),
        pytest.param("float32", EQUAL, [0.7], [0.9], "too noisy to tell", id="noisy"),
        pytest.param("float32", EQUAL, [0.7], [], "same", id="lock-step-only"),
        pytest.param("float32", None, [0.7], [], "not compared", id="nothing"),
    ],
)
def test_verdict(compute: str, lockstep: dict, differences: list, noise: list, text: str) -> None:
    assert verdict(compute, lockstep, differences, noise).startswith(text)


def test_lockstep_measures_loss_gradient_and_update() -> None:
    def weights(value: float) -> list[LayerWeights]:
        return [LayerWeights("a", "linear", {"weight": np.full((2, 2), value, "f4")})]

    found = lockstep_step((1.01, 1.0), (weights(1), weights(1.5)), (weights(2), weights(2)))
    assert found["max_rel_loss_diff"] == pytest.approx(0.01)
    assert found["max_rel_grad_diff"] == pytest.approx(0.5)
    assert found["max_rel_update_diff"] == 0.0


PARTED = EQUAL | {"max_rel_grad_diff": 8e-3, "max_rel_update_diff": 2e-5}


@pytest.mark.parametrize(
    ("lockstep", "text"),
    [
        pytest.param(PARTED | {"steps": 50, "kinks": [28]}, "same: but at step 28 of 50", id="one"),
        pytest.param(PARTED | {"steps": 10, "kinks": [3]}, "same: but at step 3", id="one-of-ten"),
        pytest.param(PARTED | {"steps": 9, "kinks": [3]}, "different: one step's grad", id="few"),
        pytest.param(
            PARTED | {"steps": 50, "kinks": [1, 2, 3]}, "different: one step's grad", id="often"
        ),
        pytest.param(
            PARTED | {"steps": 50, "kinks": [28], "max_rel_loss_diff": 1e-3},
            "different: one step's loss",
            id="loss-too",
        ),
        pytest.param(PARTED | {"steps": 50, "kinks": []}, "different: one step's grad", id="none"),
    ],
)
def test_isolated_kinks_are_no_difference(lockstep: dict, text: str) -> None:
    assert verdict("float32", lockstep, [1e-7], [1e-6]).startswith(text)


def test_kink_is_a_step_whose_loss_agrees() -> None:
    assert is_kink(PARTED)
    assert not is_kink(EQUAL)
    assert not is_kink(PARTED | {"max_rel_loss_diff": 1e-3})
