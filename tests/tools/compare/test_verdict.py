"""Verdicts: noise is not called a difference, a difference is not called noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.compare.judge import Judged, accuracy_number, floor_of, judge, noise_of
from mpcore.tools.compare.pairs import _floats
from mpcore.tools.compare.step_sizes import StepSizes, StepTensors, same_tensors, step_sizes
from mpcore.tools.compare.verdict import curve_number, free_difference, noise_tolerance, verdict
from mpcore.tools.report.result import Kink, Number

RNG = np.random.default_rng(5)
SHAPES = {
    ("fc", "linear"): {"weight": (12, 8), "bias": (12,)},
    ("norm", "norm"): {"weight": (12,), "bias": (12,), "running_mean": (12,), "running_var": (12,)},
    ("head", "linear"): {"weight": (4, 12), "bias": (4,)},
}
STATISTICS = ("running_mean", "running_var")
Change = Callable[[str, str, np.ndarray], np.ndarray]


def layers(make: Callable[[str, str, tuple[int, ...]], np.ndarray]) -> list[LayerWeights]:
    return [
        LayerWeights(path, kind, {n: make(path, n, shape).astype("f4") for n, shape in own.items()})
        for (path, kind), own in SHAPES.items()
    ]


def steps_of(
    count: int,
    unit: float,
    change: Change | None = None,
    *,
    update: Change | None = None,
    only: int | None = None,
) -> tuple[list[StepSizes], list[dict]]:
    """Return steps of two runs a few roundings apart, one of them changed, and their noise."""
    rng = np.random.default_rng(3)

    def off(size: float) -> Change:
        return lambda path, name, a: a * (1 + size * rng.normal(size=a.shape))

    sizes, noise = [], []
    for index in range(count):
        before = layers(lambda path, name, shape: rng.normal(size=shape))
        grads = layers(lambda path, name, shape: rng.normal(size=shape))

        def moved(how: Change, more: Change | None, before=before, grads=grads) -> StepTensors:
            made = [
                LayerWeights(
                    w.path,
                    w.category,
                    {n: how(w.path, n, a).astype("f4") for n, a in w.arrays.items()},
                )
                for w in grads
            ]
            steps = [
                {n: more(w.path, n, a) if more else a for n, a in w.arrays.items()} for w in made
            ]
            after = [
                LayerWeights(
                    w.path,
                    w.category,
                    {n: (a - 0.1 * step[n]).astype("f4") for n, a in w.arrays.items()},
                )
                for w, step in zip(before, steps, strict=True)
            ]
            learnt = [
                LayerWeights(
                    w.path, w.category, {n: a for n, a in w.arrays.items() if n not in STATISTICS}
                )
                for w in made
            ]
            return StepTensors(before, after, learnt, 1.0)

        first = moved(lambda path, name, a: a, None)
        noise.append(noise_of([step_sizes(first, moved(off(unit), None)) for _ in range(2)]))
        wanted = only is None or index == only
        near = off(0.2 * unit)

        def changed(path, name, a, near=near, wanted=wanted):
            a = near(path, name, a)
            return change(path, name, a) if change and wanted else a

        sizes.append(step_sizes(first, moved(changed, update if wanted else None)))
    return sizes, noise


UNITS = {"float32": 2.0**-23, "bfloat16": 0.05, "float16": 0.006}


def judged(compute: str, *args, count: int = 10, **kwargs) -> Judged:
    return judge(compute, *steps_of(count, UNITS[compute], *args, **kwargs))


def beyond(found: Judged) -> dict[str, str]:
    return {number.name: number.tensor for number in found.numbers if number.beyond}


@pytest.mark.parametrize("compute", UNITS)
def test_rounding_is_no_difference(compute: str) -> None:
    found = judged(compute)
    assert (beyond(found), found.kinks, found.tensors) == ({}, (), {})
    assert found.lockstep.first is None
    assert [number.name for number in found.numbers] == [
        *("loss", "gradient", "update", "statistics", "zeros")
    ]


def at(path: str, name: str, how: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda own, array, a: how(a) if (own, array) == (path, name) else a


def times(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: factor * a


@pytest.mark.parametrize("compute", UNITS)
def test_what_one_tensor_lacks_is_told_with_its_name(compute: str) -> None:
    wrong = judged(compute, at("fc", "bias", lambda a: 1.5 * a))
    assert beyond(wrong) == {"gradient": "fc.bias", "update": "fc.bias"}
    assert wrong.lockstep.first == 0
    still = judged(compute, update=at("head", "bias", np.zeros_like))
    assert beyond(still) == {"update": "head.bias"}
    assert still.tensors == {"update": ("head.bias",)}
    kept = judged(compute, at("norm", "running_mean", lambda a: 0.1 * a))
    assert beyond(kept) == {"statistics": "norm.running_mean"}


@pytest.mark.parametrize("compute", UNITS)
def test_flushed_gradients_show_in_their_zeros(compute: str) -> None:
    def flush(a: np.ndarray) -> np.ndarray:
        return a * (np.abs(a) > 0.05 * np.abs(a).max())

    found = judged(compute, at("fc", "weight", flush))
    assert beyond(found)["zeros"] == "fc.weight"


@pytest.mark.parametrize("compute", UNITS)
def test_a_step_alone_may_be_a_kink_and_two_of_ten_are_none(compute: str) -> None:
    apart = at("fc", "weight", lambda a: 3 * a)
    one = judged(compute, apart, only=4)
    assert [kink.step for kink in one.kinks] == [4]
    assert beyond(one) == {}
    assert one.kinks[0].max_rel_grad_diff == pytest.approx(2, rel=0.2)
    few = judged(compute, apart, only=4, count=9)
    assert few.kinks == ()
    assert beyond(few)["gradient"] == "fc.weight"


def test_a_step_whose_loss_differs_is_no_kink() -> None:
    sizes, noise = steps_of(10, UNITS["float32"])
    sizes[3]["loss"][""] = replace(sizes[3]["loss"][""], relative=1e-3)
    found = judge("float32", sizes, noise)
    assert found.kinks == ()
    assert beyond(found) == {"loss": ""}


def test_what_would_have_shown_is_what_shows_when_it_is_planted() -> None:
    for compute in UNITS:
        clean = {number.name: number for number in judged(compute).numbers}
        error = clean["gradient"].shows
        assert error is not None
        shown = [
            bool(beyond(judged(compute, at(path, name, times(1 + 1.3 * error)))))
            for (path, _), own in SHAPES.items()
            for name in own
            if name not in STATISTICS
        ]
        assert sum(shown) >= 0.8 * len(shown), (compute, error)
        hidden = beyond(judged(compute, at("fc", "weight", times(1 + 0.03 * error))))
        assert not hidden, (compute, error)


def test_noise_that_is_not_finite_explains_everything() -> None:
    sizes, noise = steps_of(3, UNITS["float32"], at("fc", "bias", lambda a: 2 * a))
    noise[1]["gradient"]["fc.bias"] = noise[1]["update"]["fc.bias"] = np.inf
    assert beyond(judge("float32", sizes, noise)) == {}


def test_a_step_that_one_side_skipped_has_a_loss_alone() -> None:
    own = layers(lambda path, name, shape: np.ones(shape))
    found = step_sizes(StepTensors(own, own, None, 1.0), StepTensors(own, own, own, 1.01))
    assert list(found) == ["loss"]
    assert found["loss"][""].relative == pytest.approx(0.01)


def test_gradients_of_nothing_but_rounding_are_measured_against_the_others() -> None:
    def grads(size: float) -> list[LayerWeights]:
        return layers(lambda path, name, shape: np.full(shape, size if name == "bias" else 1.0))

    own = layers(lambda path, name, shape: np.ones(shape))
    found = step_sizes(
        StepTensors(own, own, grads(1e-8), 1.0), StepTensors(own, own, grads(-1e-8), 1.0)
    )
    assert found["gradient"]["fc.bias"].relative < 1e-5


def test_floors_are_of_the_format() -> None:
    assert floor_of("gradient", "float32") == 1e-4
    assert floor_of("gradient", "bfloat16") == 4 * 2.0**-7
    assert floor_of("zeros", "bfloat16") == floor_of("zeros", "float32")


def test_accuracy_is_judged_by_moved_runs_and_single_examples() -> None:
    assert not accuracy_number(0.5, 0.497, [0.5], 1000).beyond
    assert accuracy_number(0.5, 0.437, [0.501, 0.499], 1000).beyond
    assert not accuracy_number(0.5, 0.47, [0.51, 0.49], 1000).beyond


# --- whole runs, and the words


def test_tolerance_is_a_margin_over_the_largest_so_far() -> None:
    assert noise_tolerance([1.0, 1.0, 1.0], [[1.0, 1.01, 1.0], [1.0, 0.98, 1.0]]) == pytest.approx(
        [1e-6, 0.06, 0.06]
    )
    assert noise_tolerance([1.0], []) == []


def test_free_difference_is_relative_and_sees_what_is_not_finite() -> None:
    assert free_difference([1.0, 2.0], [1.0, 1.0]) == [0.0, 1.0]
    assert free_difference(["inf", "nan"], ["inf", 1.0]) == [0.0, np.inf]


@pytest.mark.parametrize(
    ("differences", "noise", "beyond", "step"),
    [
        ([1e-7, 0.01], [1e-6, 0.02], False, 1),
        ([1e-7, 0.05], [1e-6, 0.02], True, 1),
        ([0.0, np.inf], [1e-6, 1e-6], True, 1),
        ([0.0, np.inf], [1e-6, np.inf], False, 1),
        ([0.7], [], False, 0),
        ([np.inf], [], True, 0),
    ],
)
def test_curves_are_judged_step_by_step(differences, noise, beyond, step) -> None:
    found = curve_number(differences, noise)
    assert (found.beyond, found.step) == (beyond, step)
    assert curve_number([], []) is None


CURVE = Number("curve", 0.01, 0.02)
GRADIENT = Number("gradient", 1e-2, 1e-4, beyond=True, tensor="fc.weight", step=2, count=3)
KINK = Kink(4, 8e-3, 2e-5)


@pytest.mark.parametrize(
    ("numbers", "more", "text"),
    [
        ([CURVE], {}, "same"),
        (
            [GRADIENT, CURVE],
            {},
            "different: one step's gradient by 1.0e-02 (noise explains 1.0e-04) in fc.weight and "
            "2 more",
        ),
        (
            [Number("curve", 0.05, 0.02, beyond=True, step=7)],
            {},
            "different: beyond noise by 2.5x at step 7",
        ),
        (
            [Number("curve", 3e12, 1e-6, beyond=True, step=0)],
            {},
            "different: beyond noise by 3e+18x at step 0",
        ),
        (
            [Number("curve", np.inf, 1e-6, beyond=True, step=3)],
            {},
            "different: only one loss is finite at step 3",
        ),
        ([CURVE], {"skips": "only one side skipped step 2"}, "different: only one side skipped"),
        (
            [replace(GRADIENT, known="biased moving variance"), CURVE],
            {},
            "known difference: biased moving variance; one step's gradient",
        ),
        ([replace(CURVE, tolerance=0.9)], {}, "too noisy to tell"),
        ([CURVE], {"noise": False}, "not compared: no lock-step or noise runs"),
        (
            [CURVE],
            {"kinks": (KINK,), "steps": 10},
            "too noisy to tell: at step 4 of 10 a gradient lies 8.0e-03 apart, and nothing proves",
        ),
        (
            [CURVE],
            {"kinks": (replace(KINK, layer="relu", proof="relu (ReLU): the input"),), "steps": 10},
            "same: but at step 4 of 10 a gradient lies 8.0e-03 apart: relu (ReLU): the input",
        ),
    ],
)
def test_verdict(numbers: list[Number], more: dict, text: str) -> None:
    assert verdict(numbers, **more).startswith(text)


def test_noise_of_the_reference_is_known_by_the_names_of_another_pair():
    first = layers(lambda path, name, shape: RNG.normal(size=shape))
    renamed = [LayerWeights(f"net.{w.path}_1", w.category, w.arrays) for w in first]
    names = same_tensors(first, renamed)
    assert names["fc.weight"] == "net.fc_1.weight"
    assert len(names) == 8
    noise = {"gradient": {"fc.weight": "0.25", "head.bias": 1e-3}}
    assert _floats(noise, names) == {"gradient": {"net.fc_1.weight": 0.25, "net.head_1.bias": 1e-3}}
    assert same_tensors([], renamed) == {}
