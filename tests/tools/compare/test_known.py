"""Known differences explain the numbers that they make, and no other ones."""

from __future__ import annotations

import numpy as np
import pytest

from mpcore.capabilities.differences import DIFFERENCES, Shown
from mpcore.checkpoint.layer_weights import LayerWeights
from mpcore.tools.compare.judge import judge
from mpcore.tools.compare.known import explained, may_explain, named
from mpcore.tools.compare.step_sizes import StepTensors, step_sizes
from mpcore.tools.report.layers import RootCause
from mpcore.tools.report.result import Number

BIASED, BIAS = "biased_moving_variance", "bias_gradient_in_bfloat16"
TWO = "one_bias_in_lstm"
HERE = {name: Shown(name, 0.2) for name in (BIASED, BIAS, TWO)}


def norms(count: int, factor: float, *, share: float = 0.1, own_share: float = 0.1, mean=1.0):
    """Return steps of a normalisation whose one side keeps ``factor`` times the variance."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        old, new = rng.uniform(0.5, 2, 8), rng.uniform(0.5, 2, 8)
        means = rng.normal(size=(2, 8))
        before = _norm(means[0], old)
        sides = (
            _norm(_kept(means, share), old + share * (factor * new - old)),
            _norm(mean * _kept(means, own_share), old + own_share * (new - old)),
        )
        found.append(tuple(StepTensors(before, after, [], 1.0) for after in sides))
    return found


def _kept(means: np.ndarray, share: float) -> np.ndarray:
    return means[0] + share * (means[1] - means[0])


def _norm(mean: np.ndarray, variance: np.ndarray) -> list[LayerWeights]:
    arrays = {"running_mean": mean.astype("f4"), "running_var": variance.astype("f4")}
    return [LayerWeights("norm", "norm", arrays)]


def told(steps, compute="float32", shown=HERE) -> dict[str, str]:
    found = judge(compute, [step_sizes(*pair) for pair in steps], [])
    entries = may_explain("torch", "tensorflow", compute, found.tensors)
    numbers = explained(found.numbers, found.tensors, entries, shown, steps)
    return {number.name: number.known for number in numbers if number.beyond}


@pytest.mark.parametrize("values", [4, 48, 4096])
def test_a_biased_variance_is_known(values: int) -> None:
    steps = norms(6, values / (values - 1))
    assert told(steps) == {"statistics": "biased moving variance"}
    turned = [(own, reference) for reference, own in steps]
    assert told(turned) == {"statistics": "biased moving variance"}


@pytest.mark.parametrize(
    "changes",
    [{"own_share": 0.001}, {"own_share": 0.09}, {"mean": 1.01}],
    ids=["momentum", "a little less", "mean"],
)
def test_another_fault_beside_it_is_not(changes: dict[str, float]) -> None:
    assert told(norms(6, 48 / 47, **changes)) == {"statistics": ""}


def test_nothing_is_known_that_the_machine_does_not_show() -> None:
    assert told(norms(6, 48 / 47), shown={BIASED: Shown(BIASED, 0.0)}) == {"statistics": ""}
    assert may_explain("torch", "mindspore", "float32", {"statistics": ["norm.running_var"]}) == []
    assert (
        may_explain("tensorflow", "tensorflow", "float32", {"statistics": ["a.running_var"]}) == []
    )


def lstms(other: float = 1.0, second: float = 0.0):
    """Return steps of an LSTM with two biases, and of one whose second bias is not there."""
    rng, found = np.random.default_rng(0), []
    for _ in range(4):
        old, move = rng.normal(size=(2, 12)), rng.normal(size=12)
        before = _lstm(*old)
        sides = (
            (before, _lstm(old[0] + move, old[1] + move)),
            (
                _lstm(old[0] + old[1], 0 * old[1]),
                _lstm(old[0] + old[1] + other * move, second * move),
            ),
        )
        found.append(tuple(StepTensors(*side, [], 1.0) for side in sides))
    return found


def _lstm(first: np.ndarray, second: np.ndarray) -> list[LayerWeights]:
    arrays = {"bias_ih_l0": first.astype("f4"), "bias_hh_l0": second.astype("f4")}
    return [LayerWeights("rnn", "recurrent", arrays)]


def test_one_bias_of_an_lstm_is_known() -> None:
    assert told(lstms()) == {"update": "one bias in lstm"}
    # The reference names the arrays, whichever side has one.
    assert told([(own, reference) for reference, own in lstms()]) == {"update": "one bias in lstm"}


@pytest.mark.parametrize("changes", [{"other": 1.1}, {"second": 0.2}, {"other": 0.0}])
def test_another_fault_in_those_biases_is_not(changes: dict[str, float]) -> None:
    assert told(lstms(**changes)) == {"update": ""}


NUMBERS = (
    Number("gradient", 0.9, 0.01, beyond=True, tensor="up.bias"),
    Number("curve", 0.1, 0.01, beyond=True),
)


@pytest.mark.parametrize(
    ("tensors", "known"),
    [
        (("up.bias", "fc.bias"), [DIFFERENCES[BIAS].title] * 2),
        (("up.bias", "up.weight"), ["", ""]),
    ],
)
def test_a_wrong_gradient_explains_what_follows_and_nothing_else(tensors, known) -> None:
    beyond = {"gradient": tensors}
    entries = may_explain("torch", "tensorflow", "bfloat16", beyond)
    assert [entry.name for entry in entries] == [BIAS]
    found = explained(NUMBERS, beyond, entries, HERE, [])
    assert [number.known for number in found] == known
    assert may_explain("torch", "tensorflow", "float16", beyond) == []


def test_the_root_cause_is_the_known_difference() -> None:
    unknown = RootCause(
        "unknown", "up", "up", "backward", ("1 apart",), "compare the code", "possible"
    )
    numbers = [Number("gradient", 0.9, 0.01, True, known=DIFFERENCES[BIAS].title)]
    (cause,) = named([unknown], numbers, HERE)
    assert (cause.kind, cause.layer, cause.confidence) == ("known difference", "up", "sure")
    assert "use_bias=False" in cause.fix
    assert named([unknown], [Number("gradient", 0.9, 0.01, True)], HERE) == (unknown,)
