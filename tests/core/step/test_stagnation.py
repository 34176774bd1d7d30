"""Lost updates: what is counted, how layers are told apart, when a warning comes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mpcore import BackendError, Policy, StepResult
from mpcore.step.result import StepValues, shares
from mpcore.step.stagnation import JUDGED_STEPS, StagnationDetector, count_lost, measures, sample

NONE = Policy.parse("model_bfloat16, master=none")
NAMES = ("fc.weight", "fc.bias", "head.weight")


def result(counts, stepped: bool = True, reads: list | None = None) -> StepResult:
    def to_numpy(value):
        if reads is not None:
            reads.append(value)
        return value

    lost = None if counts is None else np.float32(counts)
    return StepResult(StepValues(1.0, (stepped,), np.ones(3), 1.0, 1.0, 0, lost), NAMES, to_numpy)


BAD = [(90, 100), (0, 10), (10, 100)]  # fc: 82 %, head: 10 %
GOOD = [(10, 100), (0, 10), (0, 100)]


@pytest.mark.parametrize(
    ("policy", "option", "counts"),
    [
        ("model_bfloat16, master=none", "auto", True),
        ("model_bfloat16, master=stochastic", "auto", True),
        ("model_bfloat16, master=split", "auto", False),
        ("model_float16", "auto", False),
        ("float32", "auto", False),
        ("mixed_bfloat16", "on", True),
        ("model_bfloat16, master=none", "off", False),
    ],
)
def test_auto_counts_where_there_is_no_truth(policy: str, option: str, counts: bool) -> None:
    assert measures(Policy.parse(policy), option) is counts


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(
        BackendError, match="`count_lost_updates` must be one of 'auto', 'on', 'off', got 'yes'"
    ):
        measures(NONE, "yes")


@pytest.mark.parametrize("size", [0, 1, 5, 4096, 4097, 10**7, 2**33])
def test_samples_are_even_and_inside(size: int) -> None:
    index = sample(size)
    assert len(index) == min(size, 4096)
    if size:
        assert index[0] == 0
        assert index[-1] < size
    if size > 1:
        steps = np.diff(index)
        assert steps.min() >= 1
        assert steps.max() - steps.min() <= 1


def test_only_elements_with_a_gradient_count() -> None:
    before, after = np.float32([1, 1, 1, 1]), np.float32([1, 2, 1, 1])
    assert count_lost(before, after, np.float32([0.1, 0.1, 0, -0.1])) == (2, 3)


def test_a_layer_is_the_sum_of_its_tensors() -> None:
    assert shares(NAMES, np.array(BAD)) == {"fc": 90 / 110, "head": 0.1}
    assert shares(NAMES, np.zeros((3, 2))) == {}
    assert shares(["weight"], np.array([(1, 2)])) == {"weight": 0.5}


def test_the_record_tells_shares_only_where_counted() -> None:
    assert result(BAD).lost_updates == {"fc": 90 / 110, "head": 0.1}
    assert result(BAD).to_dict()["lost_updates"] == {"fc": 90 / 110, "head": 0.1}
    assert result(None).lost_updates is None
    assert "lost_updates" not in result(None).to_dict()


def test_a_stall_is_told_once_after_the_window() -> None:
    detector = StagnationDetector(NONE)
    assert not any(detector.add(result(BAD)) for _ in range(JUDGED_STEPS - 1))
    told = detector.add(result(BAD))
    assert re.search(r"most updates of fc 82% were lost .* 20 steps \(48% ov", told)
    assert not any(detector.add(result(BAD)) for _ in range(3 * JUDGED_STEPS))


def test_skipped_steps_do_not_count() -> None:
    detector = StagnationDetector(NONE)
    for number in range(2 * JUDGED_STEPS - 1):
        told = detector.add(
            result(BAD if number % 2 else np.zeros((3, 2)), stepped=bool(number % 2))
        )
        assert not told
    assert "most updates of fc" in detector.add(result(BAD))


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("model_bfloat16, master=none", GOOD),
        ("model_bfloat16, master=none", np.zeros((3, 2))),
        ("model_bfloat16, master=none", None),
        ("model_bfloat16, master=stochastic", BAD),  # right on average
    ],
)
def test_healthy_runs_are_silent(policy: str, counts) -> None:
    detector = StagnationDetector(Policy.parse(policy))
    assert not any(detector.add(result(counts)) for _ in range(3 * JUDGED_STEPS))


def test_the_device_is_waited_for_once_in_the_window() -> None:
    detector, reads = StagnationDetector(NONE), []
    for _ in range(JUDGED_STEPS - 1):
        detector.add(result(GOOD, reads=reads))
    assert not reads
    detector.add(result(GOOD, reads=reads))
    assert len(reads) == 2 * JUDGED_STEPS  # stepped and the counts, of each


def test_gradients_are_not_kept_alive() -> None:
    kept = result(BAD).lost_only()
    assert kept.lost_counts().keys() == set(NAMES)
    assert kept.stepped
    assert [value is None for value in kept._values] == [True, False, True, True, True, True, False]


def test_advice_fits_the_scheme() -> None:
    sums = dict(zip(NAMES, BAD, strict=True))
    for policy, words in (
        ("model_bfloat16, master=none", "master=split, kahan or stochastic"),
        ("model_float16, master=none", "master=copy"),
        ("model_bfloat16, master=split", "the learning rate is too small"),
        ("mixed_bfloat16", "the learning rate is too small"),
    ):
        assert words in StagnationDetector(Policy.parse(policy)).judge(sums)
