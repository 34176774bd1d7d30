"""Verdicts: noise is not called a difference, a difference is not called noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.compare.verdict import (
    StepDifference,
    free_difference,
    lockstep_step,
    lockstep_summary,
    noise_tolerance,
    verdict,
)
from mpcore.tools.report.result import Lockstep

EQUAL = StepDifference(1e-7, 1e-6, 1e-8)
AGREES = Lockstep(10, 1e-7, 1e-6, 1e-8)
GRADS_APART = replace(AGREES, max_rel_grad_diff=1e-2)


def test_tolerance_is_a_margin_over_the_largest_so_far() -> None:
    assert noise_tolerance([1.0, 1.0, 1.0], [[1.0, 1.01, 1.0], [1.0, 0.98, 1.0]]) == pytest.approx(
        [1e-6, 0.06, 0.06]
    )
    assert noise_tolerance([1.0], []) == []


def test_free_difference_is_relative_and_sees_what_is_not_finite() -> None:
    assert free_difference([1.0, 2.0], [1.0, 1.0]) == [0.0, 1.0]
    assert free_difference(["inf", "nan"], ["inf", 1.0]) == [0.0, np.inf]


@pytest.mark.parametrize(
    ("compute", "lockstep", "differences", "noise", "text"),
    [
        pytest.param("float32", AGREES, [1e-7, 0.01], [1e-6, 0.02], "same", id="inside"),
        pytest.param(
            "float32",
            AGREES,
            [1e-7, 0.05],
            [1e-6, 0.02],
            "different: beyond noise by 2.5x",
            id="out",
        ),
        pytest.param(
            "float32",
            GRADS_APART,
            [0.0],
            [1e-6],
            "different: one step's grad by 1.0e-02 (limit 1e-04)",
            id="one-step",
        ),
        pytest.param(
            "float32",
            replace(AGREES, max_rel_loss_diff=float("nan")),
            [0.0],
            [1e-6],
            "different: one step's loss by nan",
            id="nan",
        ),
        pytest.param("bfloat16", GRADS_APART, [0.01], [0.02], "same", id="low"),
        pytest.param("float32", AGREES, [0.7], [0.9], "too noisy to tell", id="noisy"),
        pytest.param("float32", AGREES, [0.7], [], "same", id="lock-step-only"),
        pytest.param("float32", None, [0.7], [], "not compared", id="nothing"),
    ],
)
def test_verdict(
    compute: str, lockstep: Lockstep | None, differences: list, noise: list, text: str
) -> None:
    assert verdict(compute, lockstep, differences, noise).startswith(text)


def test_lockstep_measures_loss_gradient_and_update() -> None:
    def weights(value: float) -> list[LayerWeights]:
        return [LayerWeights("a", "linear", {"weight": np.full((2, 2), value, "f4")})]

    found = lockstep_step((1.01, 1.0), (weights(1), weights(1.5)), (weights(2), weights(2)))
    assert found.max_rel_loss_diff == pytest.approx(0.01)
    assert found.max_rel_grad_diff == pytest.approx(0.5)
    assert found.max_rel_update_diff == 0.0


KINK = StepDifference(1e-7, 8e-3, 2e-5)


def summary_with(count: int, *kinks: int) -> Lockstep:
    return lockstep_summary(
        "float32", [KINK if index in kinks else EQUAL for index in range(count)]
    )


@pytest.mark.parametrize(("count", "kinks"), [(50, [28]), (10, [3]), (100, [1, 7, 8, 50, 99])])
def test_isolated_kinks_are_set_apart_and_named(count: int, kinks: list[int]) -> None:
    found = summary_with(count, *kinks)
    assert [kink.step for kink in found.kinks] == kinks
    assert found.kinks[0].max_rel_grad_diff == 8e-3
    assert found.max_rel_grad_diff == EQUAL.max_rel_grad_diff
    text = verdict("float32", found, [1e-7], [1e-6])
    assert text.startswith(f"same: but at step {', '.join(map(str, kinks))} of {count}")
    assert "8.0e-03" in text


@pytest.mark.parametrize(("count", "kinks"), [(9, [3]), (50, [1, 2, 3]), (1, [0])])
def test_frequent_ones_are_a_difference(count: int, kinks: list[int]) -> None:
    found = summary_with(count, *kinks)
    assert found.kinks == ()
    assert found.max_rel_grad_diff == 8e-3
    assert verdict("float32", found, [1e-7], [1e-6]).startswith("different: one step's grad")


def test_step_whose_loss_differs_is_no_kink() -> None:
    found = lockstep_summary("float32", [EQUAL] * 20 + [replace(KINK, max_rel_loss_diff=1e-3)])
    assert found.kinks == ()
    assert found.max_rel_loss_diff == 1e-3


def test_sixteen_bits_have_no_kinks() -> None:
    found = lockstep_summary("bfloat16", [EQUAL] * 19 + [KINK])
    assert found.kinks == ()
    assert found.max_rel_grad_diff == 8e-3
    assert verdict("bfloat16", found, [1e-7], [1e-6]) == "same"


def test_a_difference_without_measure_is_told_in_short() -> None:
    assert (
        verdict("float32", AGREES, [3e12], [1e-6]) == "different: beyond noise by 3e+18x at step 0"
    )
